// OperatorWatch: the work of the operators that a thread runs, of a planned step on the meta device or of a real one.
#pragma once

#include <ATen/record_function.h>

#include <functional>

#include "core/plan/machine.h"

namespace trireme::plan {

/// While it exists, calls `use` with the work of each operator that the calling thread runs on tensors of this type of
/// device. An operator that is made of others is their work; views and new memory are none. One at a time in a thread.
class OperatorWatch {
 public:
  using Use = std::function<void(const Work&)>;
  OperatorWatch(c10::DeviceType on, Use use);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace trireme::plan
