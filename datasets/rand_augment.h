// RandAugment: a number of operations on pixels, drawn uniformly from 14, all with one magnitude (Cubuk et al.,
// "RandAugment: practical automated data augmentation with a reduced search space", 2020). The operations and the
// strength that a magnitude of 0 to 30 means are those of torchvision's RandAugment with 31 bins.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme::datasets {

inline constexpr std::int64_t kRandAugmentOperations = 14;
inline constexpr std::int64_t kMostMagnitude = 30;

struct AugmentOperation {
  std::int64_t number = 0;  ///< 0 to kRandAugmentOperations - 1
  std::int64_t magnitude =
      0;  ///< -kMostMagnitude to kMostMagnitude: the sign is the direction of an operation with one
};

/// "ShearX", as in the paper.
const char* name_of_operation(std::int64_t number);

/// The operations of one sample: `count` of them in order. They depend only on the arguments.
/// @param key,stream the random numbers: random::philox(key, stream, index of the operation)
std::vector<AugmentOperation> draw_operations(std::uint64_t key, std::uint64_t stream, std::int64_t count,
                                              std::int64_t magnitude);

/// uint8 [H, W, 1 or 3], contiguous -> a new image of the same shape, or the image itself if nothing changes.
at::Tensor apply_operation(const at::Tensor& image, const AugmentOperation& operation);

}  // namespace trireme::datasets
