#include "core/booster/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/promote_types.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/nn/parameters.h"

namespace trireme {

WeightAverage::WeightAverage(BoostedModel& model, double decay)
    : model_(model), decay_(decay), buffers_(nn::buffers(model.module())) {
  TRIREME_REQUIRE(decay > 0 && decay < 1, "the decay {} of a weight average is not between 0 and 1", decay);
  for (const auto& parameter : nn::declarations(model.module()))
    if (!parameter.value.requires_grad()) frozen_.insert(parameter.name);
  reset();
}

bool WeightAverage::is_averaged(const shard::Slice& slice) const {
  return slice.value.is_floating_point() && !frozen_.contains(slice.placement.name);
}

std::vector<shard::Slice> WeightAverage::averaged_of(std::vector<shard::Slice> weights) {
  auto slices = std::move(weights);
  slices.insert(slices.end(), buffers_.begin(), buffers_.end());
  std::erase_if(slices, [this](const shard::Slice& slice) { return !is_averaged(slice); });
  return slices;
}

void WeightAverage::reset() {
  average_.clear();
  for (const auto& [placement, value] : averaged_of(model_.weights()))
    average_.push_back(value.detach().to(at::promote_types(value.scalar_type(), at::kFloat), /*non_blocking=*/false,
                                         /*copy=*/true));
}

void WeightAverage::update(std::int64_t step) {
  TRIREME_REQUIRE(!in_use(), "the average of the weights is in use; train after its guard has gone");
  const at::NoGradGuard no_grad;
  const auto n = static_cast<double>(step);
  const double part = 1 - std::min(decay_, (1 + n) / (10 + n));
  const auto slices = averaged_of(model_.current_weights());
  TRIREME_CHECK(slices.size() == average_.size(), "the model's weights have changed");
  // The foreach kernels take lists of one device and dtype. Offloaded weights are in host memory, and may have moved.
  using List = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;
  std::map<std::pair<c10::DeviceType, at::ScalarType>, List> lists;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto& value = slices[i].value;
    if (average_[i].device() != value.device()) average_[i] = average_[i].to(value.device());
    auto& [averages, values] = lists[{value.device().type(), average_[i].scalar_type()}];
    averages.push_back(average_[i]);
    values.push_back(value.detach().to(average_[i].scalar_type()));
  }
  for (auto& [kind, list] : lists) at::_foreach_lerp_(list.first, list.second, part);
}

ScopeGuard WeightAverage::use() {
  if (in_use()) return ScopeGuard({});
  const at::NoGradGuard no_grad;
  const auto slices = averaged_of(model_.weights());
  for (const auto& slice : slices) weights_.push_back(slice.value.detach().clone());
  for (std::size_t i = 0; i < slices.size(); ++i) slices[i].value.detach().copy_(average_[i]);
  model_.weights_changed();
  // An error ends the run: other ranks would not take part in the communication that brings the weights back.
  return ScopeGuard([this, errors = std::uncaught_exceptions()] {
    if (std::uncaught_exceptions() == errors) stop_use();
  });
}

void WeightAverage::stop_use() {
  const at::NoGradGuard no_grad;
  const auto slices = averaged_of(model_.weights());
  for (std::size_t i = 0; i < slices.size(); ++i) slices[i].value.detach().copy_(weights_[i]);
  weights_.clear();
  model_.weights_changed();
}

std::vector<shard::Slice> WeightAverage::state() {
  auto all = model_.weights();
  auto slices = averaged_of(all);
  for (std::size_t i = 0; i < slices.size(); ++i) slices[i].value = average_[i];
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  for (auto& slice : all)
    if (!is_averaged(slice)) slices.push_back(std::move(slice));
  return slices;
}

std::int64_t WeightAverage::bytes() const {
  std::size_t bytes = 0;
  for (const auto& tensor : average_) bytes += tensor.nbytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace trireme
