// OperatorProfile: where the time of a step goes, operator by operator.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/plan/operator_watch.h"

namespace trireme::train {

/// Watches the operators of the calling thread on a CPU while it exists.
class OperatorProfile {
 public:
  OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Of a step, the one that takes most time first: [{name, kind, calls, seconds, bytes, flops}]; bytes are those of
  /// the tensors that it reads and writes.
  [[nodiscard]] nlohmann::json table(double steps) const;
  /// Spans of a Chrome trace, without process and thread: [{name, cat, ts, dur, args: {bytes, flops}}].
  [[nodiscard]] nlohmann::json spans() const;

 private:
  struct Span {
    std::string name;
    plan::Work work;
    double begin, seconds;  ///< since the profile's begin
  };
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::vector<Span> spans_;
  plan::OperatorWatch watch_;
};

}  // namespace trireme::train
