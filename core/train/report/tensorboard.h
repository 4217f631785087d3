// TensorBoard: writes a run's steps and evaluations for TensorBoard (run.tensorboard), under tags that begin with the
// split. Steps: train/loss, lr, grad_norm, samples_per_s, data_wait and, where they are known, flops_per_s and mfu, as
// in metrics.jsonl. Evaluations: validation/METRIC, and train/epoch_loss at the end of an epoch; test/METRIC of the
// last weights, and test_best/METRIC of the best ones if they are others.
#pragma once

#include <memory>

#include "core/train/callback.h"

namespace trireme::train {

/// Rank 0 makes a file in RUN/tensorboard; a resumed run adds another.
std::shared_ptr<RunCallback> tensorboard();

}  // namespace trireme::train
