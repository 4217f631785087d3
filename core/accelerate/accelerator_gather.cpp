// Accelerator: values of all ranks.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

#include "core/accelerate/accelerate_state.h"
#include "core/base/error.h"

namespace trireme {
namespace {

/// The sizes of each rank's values. @throws UsageError when they differ in another dim than the first
std::vector<std::vector<std::int64_t>> sizes_of_ranks(const comm::Group& ranks, const at::Tensor& values,
                                                      c10::Device device) {
  const auto mine = at::tensor(values.sizes(), at::kLong).to(device);
  auto all = at::empty({ranks.size(), values.dim()}, mine.options());
  ranks.all_gather_into(all, mine);
  all = all.cpu();
  std::vector<std::vector<std::int64_t>> sizes;
  for (std::int64_t r = 0; r < all.size(0); ++r) {
    const auto* row = all.const_data_ptr<std::int64_t>() + r * all.size(1);
    sizes.emplace_back(row, row + all.size(1));
    const bool same = std::equal(row + 1, row + all.size(1), sizes.front().begin() + 1);
    TRIREME_REQUIRE(same,
                    "Accelerator::gather(): ranks 0 and {} have values of different sizes in another dim than the "
                    "first; pad them to one size, by an all-reduce of the largest",
                    r);
  }
  return sizes;
}

}  // namespace

at::Tensor Accelerator::gather(const at::Tensor& values) {
  (void)state_->prepared();
  auto mine = values.detach();
  if (mine.dim() == 0) mine = mine.unsqueeze(0);
  const auto& ranks = state_->data_group();
  if (ranks.size() == 1) return mine;
  const auto at_home = mine.device();
  mine = mine.to(device()).contiguous();
  std::vector<at::Tensor> parts;
  for (const auto& sizes : sizes_of_ranks(ranks, mine, device())) parts.push_back(at::empty(sizes, mine.options()));
  ranks.all_gather(parts, mine);
  return at::cat(parts).to(at_home);
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& values) {
  const auto* active = state_->active();
  TRIREME_REQUIRE(active != nullptr,
                  "Accelerator::gather_for_metrics() outside the loop over a prepared loader, whose batch says which "
                  "values are samples; call gather()");
  TRIREME_REQUIRE(values.dim() > 0 && values.size(0) == active->batch.size(),
                  "Accelerator::gather_for_metrics(): dim 0 of the values is {}, but the batch has {} samples; it "
                  "gathers one row for each sample, and reduce() sums other values",
                  values.dim() > 0 ? values.size(0) : 0, active->batch.size());
  return gather(values.narrow(0, 0, active->local_samples));
}

at::Tensor Accelerator::reduce(const at::Tensor& values, comm::ReduceOp op) {
  (void)state_->prepared();
  auto all = values.detach().to(device()).clone();
  state_->data_group().all_reduce(all, op);
  return all.to(values.device());
}

}  // namespace trireme
