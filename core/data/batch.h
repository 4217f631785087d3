// Batch: the samples of one forward pass of one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::data {

struct Batch {
  /// To the model: images {pixel_values [B,3,H,W]}; B may be 0. On the meta device where this rank does not read them.
  std::vector<at::Tensor> inputs;
  at::Tensor labels;                 ///< int64 [B]
  at::Tensor sample_ids;             ///< int64 [B], CPU: the samples' numbers in the data set
  double global_weight = 0;          ///< what the loss sums of the whole global batch are divided by (samples)
  std::int64_t epoch = 0, step = 0;  ///< step: optimizer step since the start of training
  [[nodiscard]] std::int64_t size() const { return labels.size(0); }
};

/// All microbatches of one optimizer step of one rank. Each data-parallel rank has the same number of them.
struct StepBatch {
  std::vector<Batch> micro;
  std::int64_t global_samples = 0, local_samples = 0;
  double wait_seconds = 0;  ///< how long the loop stood still for this data
};

}  // namespace trireme::data
