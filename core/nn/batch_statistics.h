// Layers that compute statistics of a microbatch.
#pragma once

#include <algorithm>

#include "core/nn/parameters.h"

namespace trireme::nn {

/// Whether the model has batch norms: microbatches of another size would then train another model.
inline bool has_batch_statistics(Model& model) {
  const auto all = buffers(model);
  return std::any_of(all.begin(), all.end(),
                     [](const auto& buffer) { return buffer.placement.name.ends_with("running_mean"); });
}

}  // namespace trireme::nn
