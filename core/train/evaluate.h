// Evaluation over ranks: loss, top-1 and top-k, every sample counted once.
#pragma once

#include <cstdint>

#include "core/booster/booster.h"

namespace trireme::train {

struct EvalResult {
  std::int64_t samples = 0;
  double loss = 0;                 ///< mean over samples
  double accuracy = 0, top_k = 0;  ///< shares, 0..1
  std::int64_t k = 1;              ///< of top_k: min(topk option, classes)
  double seconds = 0;
};

/// Collective over the data-parallel ranks; the model is left in evaluation mode. `criterion`: null for the training's
/// own. @throws DataError (no sample), OutOfMemoryError
EvalResult evaluate(Booster& booster, Boosted& run, data::Loader& loader, std::int64_t topk,
                    const Criterion& criterion = nullptr);

}  // namespace trireme::train
