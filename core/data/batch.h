// Batch: the samples of one forward pass of one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::data {

struct Batch {
  /// The model's inputs: images {pixel_values [B,3,H,W]}; B may be 0. On the meta device on ranks that do not read
  /// them.
  std::vector<at::Tensor> inputs;
  at::Tensor labels;                 ///< int64 [B]
  at::Tensor sample_ids;             ///< int64 [B], CPU: the samples' indices in the data set
  double global_weight = 0;          ///< the divisor for loss sums over the whole global batch: its number of samples
  std::int64_t epoch = 0, step = 0;  ///< step: optimizer step since the start of training
  [[nodiscard]] std::int64_t size() const { return labels.size(0); }
};

/// All microbatches of one optimizer step on one rank. Each data-parallel rank has the same number of them.
struct StepBatch {
  std::vector<Batch> micro;
  std::int64_t global_samples = 0, local_samples = 0;
  double wait_seconds = 0;  ///< how long the training loop waited for this data
};

}  // namespace trireme::data
