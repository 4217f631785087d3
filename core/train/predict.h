// What a model computes for a data set.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/booster/booster.h"

namespace trireme::train {

/// On the CPU, in the order of the data set, the same on every rank. N: the samples that could be read.
struct Predictions {
  at::Tensor samples;        ///< their indices, int64 [N]
  nn::Tensors outputs;       ///< the model's outputs, [N, ...] each, with all classes
  nn::NamedTensors targets;  ///< [N, ...] each
};

/// Collective over all ranks; leaves the model in training mode. Every output and target must have one shape for all
/// samples. @throws DataError when no sample could be read, or shapes differ; OutOfMemoryError
Predictions predict(Boosted& run, data::Loader& loader);

}  // namespace trireme::train
