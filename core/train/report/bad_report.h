// Names the first tensor of a step that is not finite. The step is run again for that: forward and backward of the same
// batch, with the same dropout masks, while every block's outputs and every parameter's gradient are looked at. This
// waits for the device many times, and is only for a run that is about to end.
#pragma once

#include <cstdint>
#include <string>

#include "core/booster/booster.h"

namespace trireme::train {

struct BadTensor {
  /// Sentences for the user: "The first tensor that is not finite, in a replay of the step: the output of block 3
  /// (vit.encoder.layer.2) on rank 1, in microbatch 0 (samples 4, 17, 9); sample 17 alone gives it."
  std::string text{};
  /// What to do if something better is known than a lower learning rate, or "".
  std::string remedy{};
};

/// `step`: of the epoch, from 0. The gradients are lost, running statistics change, and the loader is left in the
/// middle of the epoch. The weights must be those before the step; if they are not, the replay may be finite, and the
/// text says so. The same on every rank. Collective over the world. @throws Error of any kind
BadTensor find_bad_tensor(Boosted& run, std::int64_t epoch, std::int64_t step);

}  // namespace trireme::train
