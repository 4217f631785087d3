// How samples of different lengths are put together to batches: padded, and if wanted with others of like lengths.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/fields.h"
#include "core/data/dataset.h"
#include "datasets/text/token_file.h"

namespace trireme::datasets {

/// The rows length_buckets and pad_multiple of options that have max_tokens, too.
template <class T>
Fields<T>& add_length_fields(Fields<T>& rows) {
  return rows
      .add("length_buckets", &T::length_buckets,
           "Train on samples of like lengths in each step, so that little is padded; the order of the steps stays "
           "random.")
      .add("pad_multiple", &T::pad_multiple,
           "Samples are padded to the longest of their batch, rounded up to a multiple of this. 8 suits GPUs with fp16 "
           "or bf16.",
           {.min = 1, .max = 1 << 20})
      .rule([](const T& o, const CheckedSection& section) {
        if (o.max_tokens % o.pad_multiple != 0)
          section.fail("pad_multiple", fmt::format("does not divide max_tokens = {}, so that samples could become "
                                                   "longer than that",
                                                   o.max_tokens));
      });
}

/// Notes the longest of these samples, as it is padded.
void take_longest(const TokenFile& tokens, std::int64_t multiple, nn::DataSpec& spec);

/// Length buckets: a shuffled order in which the samples of each step are of like lengths, so that little is padded.
/// `shuffled`, a permutation, is cut into windows of many global batches; each is sorted by length and cut into global
/// batches, and the order of all of these is shuffled. The incomplete batch at the end of `shuffled` stays at the end,
/// so that train.drop_last drops any samples, not the longest ones. The result depends on the lengths and the arguments
/// alone; without a global batch it is `shuffled`.
std::vector<std::int64_t> order_in_buckets(std::vector<std::int64_t> shuffled, const data::Shuffle& shuffle,
                                           const std::function<std::int64_t(std::int64_t)>& length_of);

}  // namespace trireme::datasets
