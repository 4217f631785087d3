// Range checks of token ids and class labels, which come from the data and are used as indices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::nn {

/// The label of a sample or token that the loss ignores; LibTorch's default.
inline constexpr std::int64_t kNoLabel = -100;

/// Checks that every label is in [0, classes) or is kNoLabel. On a GPU the check does not synchronise the host; a
/// failure is a device-side assertion.
/// @throws DataError
void check_labels(const at::Tensor& labels, std::int64_t classes);
/// Checks that every token id is in [0, vocabulary). @throws DataError
void check_token_ids(const at::Tensor& token_ids, std::int64_t vocabulary);

}  // namespace trireme::nn
