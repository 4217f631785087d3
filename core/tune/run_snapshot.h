// RunSnapshot: the state of a run in memory: weights, buffers, optimizer state and loss scale. The tuner trains steps
// and takes them back.
#pragma once

#include <vector>

#include "core/booster/booster.h"

namespace trireme::tune {

class RunSnapshot {
 public:
  /// Copies the state to host memory, which does not count towards the rank's limit. Collective.
  explicit RunSnapshot(Boosted& run);
  /// Sets the state of the run that was copied, bitwise equal, and of LibTorch's generators nothing. Collective.
  void restore(Boosted& run) const { write_to(run, /*scaler=*/true); }
  /// Sets the state of its twin in another precision; its loss scale stays. Collective.
  /// @pre fits(twin)
  void copy_to(Boosted& twin) const { write_to(twin, /*scaler=*/false); }
  /// Whether the twin divides its tensors among the ranks as the run does.
  [[nodiscard]] bool fits(Boosted& twin) const;

 private:
  void write_to(Boosted& run, bool scaler) const;

  std::vector<shard::Slice> weights_, optimizer_;
  at::Tensor scaler_;  ///< undefined: there is none
};

}  // namespace trireme::tune
