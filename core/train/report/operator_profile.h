// OperatorProfile: where the time of a step goes, operator by operator and block by block.
#pragma once

#include <chrono>
#include <map>
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
  /// Of a step, by the block of the model: [{block, forward, backward, bytes, flops, kinds: {kind: seconds}}]; -1 is
  /// what is in none, such as the loss and the optimizer.
  [[nodiscard]] nlohmann::json blocks(double steps) const;
  /// Spans of a Chrome trace, without process and thread: [{name, cat, ts, dur, args: {bytes, flops, dtype, block}}].
  [[nodiscard]] nlohmann::json spans() const;

 private:
  struct Span {
    std::string name;
    plan::Work work;
    double begin, seconds;  ///< since the profile's begin
    int block;
    bool is_backward;
  };
  int block_of(const plan::SeenOperator& seen);
  std::map<std::int64_t, int> blocks_from_;  ///< the block in which autograd's nodes are made from this number on
  int forward_block_ = -1, block_ = -1;      ///< of the operator before, in a forward pass and in any
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::vector<Span> spans_;
  plan::OperatorWatch watch_;
};

}  // namespace trireme::train
