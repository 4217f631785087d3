// Numbers that come with the data and choose something: a word of a vocabulary, a label of the classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::nn {

/// LibTorch's: the label of a sample that adds nothing to the sum of losses.
inline constexpr std::int64_t kNoLabel = -100;

/// Every element of `labels` is one of `classes`, or kNoLabel. On a GPU the host does not wait: the device stops.
/// @throws DataError
void check_labels(const at::Tensor& labels, std::int64_t classes);
/// The same for words of a vocabulary. @throws DataError
void check_words(const at::Tensor& words, std::int64_t vocabulary);

}  // namespace trireme::nn
