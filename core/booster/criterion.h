// Criterion: computes a loss from outputs and batch. It returns the SUM over samples and its weight, never a mean: only
// the engine knows the weight of the global batch (contract C3).
#pragma once

#include <functional>

#include "core/data/batch.h"
#include "core/nn/context.h"
#include "core/nn/criterion.h"

namespace trireme {

using Criterion = std::function<nn::Loss(const nn::Tensors& outputs, const data::Batch& batch)>;

}  // namespace trireme
