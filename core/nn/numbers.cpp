#include "core/nn/numbers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

void check(const at::Tensor& fine, const std::string& wrong) {
  if (!fine.is_cpu()) return at::_assert_async(fine.all(), wrong);
  if (!fine.all().item<bool>()) throw DataError(wrong);
}

at::Tensor in_range(const at::Tensor& numbers, std::int64_t count) {
  return numbers.ge(0).logical_and_(numbers.lt(count));
}

}  // namespace

void check_labels(const at::Tensor& labels, std::int64_t classes) {
  check(in_range(labels, classes).logical_or_(labels.eq(kNoLabel)),
        fmt::format("a sample's label is none of the {} classes", classes));
}

void check_words(const at::Tensor& words, std::int64_t vocabulary) {
  check(in_range(words, vocabulary), fmt::format("a sample has a word that is none of the {} known", vocabulary));
}

}  // namespace trireme::nn
