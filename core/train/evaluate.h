// Evaluation over all ranks: loss, top-1 and top-k accuracy; every sample counts once.
#pragma once

#include <cstdint>

#include "core/booster/booster.h"

namespace trireme::train {

struct EvalResult {
  std::int64_t samples = 0;
  double loss = 0;                 ///< mean over samples
  double accuracy = 0, top_k = 0;  ///< fractions, 0..1
  std::int64_t k = 1;              ///< the k of top_k: min(topk option, classes)
  double seconds = 0;
};

/// Collective over the data-parallel ranks; leaves the model in evaluation mode. `criterion`: null for the training
/// criterion. @throws DataError (no sample could be read), OutOfMemoryError
EvalResult evaluate(Booster& booster, Boosted& run, data::Loader& loader, std::int64_t topk,
                    const Criterion& criterion = nullptr);

}  // namespace trireme::train
