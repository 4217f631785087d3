// Range checks of token ids and class labels, which come with the data and are used as indices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::nn {

/// The label of a sample or token that is not part of the loss; LibTorch's default.
inline constexpr std::int64_t kNoLabel = -100;

/// Checks that every label is below `classes`, or kNoLabel. On a GPU the check does not synchronise the host; a failure
/// is an assertion on the device.
/// @throws DataError
void check_labels(const at::Tensor& labels, std::int64_t classes);
/// The same for token ids of a vocabulary. @throws DataError
void check_token_ids(const at::Tensor& token_ids, std::int64_t vocabulary);

}  // namespace trireme::nn
