// Batch: the samples of one forward pass of one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/nn/context.h"
#include "core/nn/named_tensors.h"

namespace trireme::data {

struct Batch {
  /// What the model reads, [B, ...] each; B may be 0: {{"pixel_values", [B, 3, H, W]}}. Those that this rank does not
  /// read are on the meta device.
  nn::NamedTensors inputs{};
  /// What the loss reads, [B, ...] each: {{"labels", int64 [B]}}.
  nn::NamedTensors targets{};
  at::Tensor sample_ids{};  ///< int64 [B], CPU: the samples' indices in the data set
  /// The divisor of the loss: the weight of the whole global batch, such as its number of samples or of valid tokens.
  /// 0-dim float64, on the CPU or the batch's device. The loader of Booster::boost() sets it; for batches of other
  /// loaders there is Boosted::set_global_weight().
  at::Tensor global_weight{};
  std::int64_t epoch = 0, step = 0;  ///< step: the optimizer step, from 0 at the start of training
  /// The loss of a batch by the head that makes the model's scores.
  using LossOfHead = std::function<at::Tensor(const nn::Head& head, const Batch& batch)>;
  /// Set in a training step in which nobody reads the outputs: the only output may then be the loss, 0-dim.
  LossOfHead loss_of_head{};

  [[nodiscard]] std::int64_t size() const {
    for (const auto* tensors : {&targets, &inputs})
      if (!tensors->empty()) return tensors->begin()->second.size(0);
    return 0;
  }
};

/// All microbatches of one optimizer step on one rank. Each data-parallel rank has the same number of them.
struct StepBatch {
  std::vector<Batch> micro;
  std::int64_t global_samples = 0, local_samples = 0;
  double wait_seconds = 0;  ///< how long the training loop waited for this data
  /// Elements of this rank's inputs whose size varies, and those of them that are padding.
  std::int64_t elements = 0, padding = 0;
};

}  // namespace trireme::data
