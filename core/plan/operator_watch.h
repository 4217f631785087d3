// OperatorWatch: the work and the time of the operators that a thread runs, of a planned step on the meta device or of
// a real one.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string_view>

#include "core/plan/machine.h"

namespace trireme::plan {

/// An operator that has ended.
struct SeenOperator {
  std::string_view name;  ///< "aten::addmm"
  Work work{};
  std::chrono::steady_clock::time_point begin{}, end{};  ///< of the host, which a GPU does not keep waiting
  /// By which a backward pass finds its forward pass: of the autograd node whose backward pass runs it; in a forward
  /// pass, of the next node that is made. Unset for the node that adds to a parameter's gradient.
  std::optional<std::int64_t> sequence{};
  bool is_backward = false;
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(end - begin).count(); }
};

/// While it exists, calls `use` with each operator that the calling thread runs on tensors of this type of device. An
/// operator that is made of others is their work. Views and new memory have no bytes. One at a time in a thread.
class OperatorWatch {
 public:
  using Use = std::function<void(const SeenOperator&)>;
  OperatorWatch(c10::DeviceType on, Use use);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace trireme::plan
