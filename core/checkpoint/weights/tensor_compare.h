// What the values of stored tensors are, and how two sets of them differ. One tensor, or a pair, is in memory at a
// time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/weights/tensor_list.h"

namespace trireme::checkpoint {

/// Of the finite values; 0 where there is none.
struct TensorStats {
  double min = 0, max = 0, mean = 0;
  std::int64_t nonfinite = 0;
};
TensorStats stats_of(const at::Tensor& values);

enum class Difference { only_in_first, only_in_second, shape, values };

struct TensorDifference {
  std::string name;
  int group = 0;  ///< ListedTensor::group
  Difference kind = Difference::values;
  std::optional<TensorInfo> first{}, second{};
  std::int64_t elements = 0;  ///< that differ
  /// The largest |a - b|, and |a - b| / max(|a|, |b|). Infinite if a value is finite in one of them only.
  double max_abs = 0, max_rel = 0;
  [[nodiscard]] bool other_dtype() const { return first && second && first->dtype != second->dtype; }
};

struct Comparison {
  std::int64_t equal = 0;  ///< tensors that are equal bit for bit
  /// By group; within one the tensors that only one has first, then those of another shape, then by the largest
  /// difference.
  std::vector<TensorDifference> differences;
};
/// @throws CheckpointError
Comparison compare(const TensorList& first, const TensorList& second);

}  // namespace trireme::checkpoint
