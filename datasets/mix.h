// Mixup and CutMix: a training sample is mixed with another one of its batch, and so is its label. The loss then has
// two labels with their shares (nn::kMixedLabels, nn::kLabelShares).
//
// Methods: Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018; Yun et al., "CutMix: Regularization
// strategy to train strong classifiers with localizable features", ICCV 2019. The share is drawn for each sample, by
// (seed, epoch, sample), so that it is the same in every layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/data/dataset.h"

namespace trireme::datasets {

/// The share of a sample is drawn from Beta(alpha, alpha). With both methods, each sample takes one of them with
/// probability 1/2.
struct MixOptions {
  double mixup = 0;   ///< alpha of mixup; 0: none
  double cutmix = 0;  ///< alpha of CutMix; 0: none
  [[nodiscard]] bool any() const { return mixup > 0 || cutmix > 0; }
};

/// How a sample is mixed.
struct Mix {
  double share = 1;  ///< of the sample itself, in pixels' values or in its area
  /// CutMix: rows [top, bottom) and columns [left, right) come from the other sample. Empty for mixup.
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;
  bool cut = false;
};
/// For images of height x width pixels. With CutMix, the share is that of the box after it is clipped to the image.
Mix draw_mix(const MixOptions& options, std::uint64_t seed, std::int64_t epoch, std::int64_t sample,
             std::int64_t height, std::int64_t width);

inline constexpr const char* kMix = "mix";  ///< the target that holds a sample's Mix until the batch is mixed
/// A Mix as float64 [6]: the share, the weight of the own pixels outside of the box, and the box.
at::Tensor as_tensor(const Mix& how);

/// The targets that mix() adds.
std::vector<nn::SampleTensor> mixed_targets();
/// Mixes each sample of a batch of B + 1 with the next one: the input "pixel_values" float [B + 1, C, H, W], if there
/// is one; and adds mixed_targets(). `draws`: as_tensor() of the samples, [B + 1, 6], on their device. The result has
/// B samples.
data::Sample mix(const data::Sample& batch, const at::Tensor& draws);

/// A draw from Beta(alpha, alpha) with the random stream `key`.
double draw_beta(double alpha, std::uint64_t key);

}  // namespace trireme::datasets
