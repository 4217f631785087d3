#include "core/nn/layers/index_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <fmt/format.h>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

at::Tensor in_range(const at::Tensor& indices, std::int64_t count) {
  return indices.ge(0).logical_and_(indices.lt(count));
}

// `what`: the kind of number, for the message. On a GPU the value is unknown, because the host does not wait.
void check(const at::Tensor& indices, const at::Tensor& good, const char* what, std::int64_t count) {
  const auto all_good = good.all();
  if (!indices.is_cpu())
    return at::_assert_async(all_good,
                             fmt::format("a sample has a {} out of range; expected 0 to {}", what, count - 1));
  if (all_good.item<bool>()) return;
  const auto bad = indices.masked_select(good.logical_not());
  throw DataError(
      fmt::format("a sample has {} {}; expected 0 to {}", what, bad.view({-1})[0].item<std::int64_t>(), count - 1));
}

}  // namespace

void check_labels(const at::Tensor& labels, std::int64_t classes) {
  check(labels, in_range(labels, classes).logical_or_(labels.eq(kNoLabel)), "label", classes);
}

void check_token_ids(const at::Tensor& token_ids, std::int64_t vocabulary) {
  check(token_ids, in_range(token_ids, vocabulary), "token id", vocabulary);
}

}  // namespace trireme::nn
