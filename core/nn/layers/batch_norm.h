// BatchNorm: normalisation of each channel over the batch. Ioffe and Szegedy, "Batch Normalization: Accelerating Deep
// Network Training by Reducing Internal Covariate Shift", 2015.
//
// In training, mean and variance are those of the batch, and the running ones move towards them; an evaluation uses the
// running ones. A rank's batch is a microbatch of its share. Synchronised, it is the microbatch of all data-parallel
// ranks together, at the cost of three small all-reduces a layer: the results are then those of one rank with them all.
#pragma once

#include <cstdint>

#include "core/nn/layer.h"
#include "core/nn/sums_over_ranks.h"

namespace trireme::nn {

/// x [B, channels, ...] -> the same shape. Names and shapes are those of torch.nn.BatchNorm: weight [channels] starts
/// as ones, bias as zeros; the buffers running_mean [channels] as zeros, running_var as ones, and num_batches_tracked
/// (int64, 0-dim) as zero. running_var is unbiased: divided by the number of values less one. Sums and running
/// statistics have at least float32, in every precision of the run. A batch with one value per channel has no variance
/// and changes no running statistics.
class BatchNorm : public Unary, public SumsOverRanks {
 public:
  struct Options {
    std::int64_t channels;
    double eps = 1e-5;
    double momentum = 0.1;  ///< of the batch in the running statistics
    bool synchronised = false;
    bool starts_at_zero = false;  ///< weight starts as zeros, so the output is zero at first
  };
  explicit BatchNorm(const Options& options);
  [[nodiscard]] bool needs_sums() const override { return options_.synchronised; }

  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 protected:
  at::Tensor compute(const at::Tensor& x, const Context& context) override;

 private:
  /// The batch of this rank, and that of all ranks. w and b have the dtype of the sums, and so has over_ranks()'s x.
  at::Tensor alone(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, bool training);
  at::Tensor over_ranks(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

  Options options_;
};

}  // namespace trireme::nn
