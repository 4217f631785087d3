#include "core/booster/weight_average.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/nn/parameters.h"

namespace trireme {

WeightAverage::WeightAverage(BoostedModel& model, double decay) : model_(model), decay_(decay) {
  TRIREME_REQUIRE(decay > 0 && decay < 1, "the decay {} of a weight average is not between 0 and 1", decay);
  reset();
}

std::vector<shard::Slice> WeightAverage::averaged_of(std::vector<shard::Slice> weights) {
  auto slices = std::move(weights);
  for (auto& buffer : nn::buffers(model_.module())) slices.push_back(std::move(buffer));
  std::erase_if(slices, [](const shard::Slice& slice) { return !slice.value.is_floating_point(); });
  return slices;
}

void WeightAverage::reset() {
  average_.clear();
  for (const auto& [placement, value] : averaged_of(model_.weights())) average_.push_back(value.detach().clone());
}

void WeightAverage::update(std::int64_t step) {
  const at::NoGradGuard no_grad;
  const auto n = static_cast<double>(step);
  const double part = 1 - std::min(decay_, (1 + n) / (10 + n));
  const auto slices = averaged_of(model_.current_weights());
  TRIREME_CHECK(slices.size() == average_.size(), "the model's weights have changed");
  // The foreach kernels take lists of one device and dtype. Offloaded weights are in host memory, and may have moved.
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>>
      lists;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (average_[i].device() != slices[i].value.device()) average_[i] = average_[i].to(slices[i].value.device());
    auto& [averages, values] = lists[{slices[i].value.device().type(), slices[i].value.scalar_type()}];
    averages.push_back(average_[i]);
    values.push_back(slices[i].value.detach());
  }
  for (auto& [kind, list] : lists) at::_foreach_lerp_(list.first, list.second, part);
}

void WeightAverage::exchange() {
  const at::NoGradGuard no_grad;
  const auto slices = averaged_of(model_.weights());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const auto weights = slices[i].value.detach().clone();
    slices[i].value.detach().copy_(average_[i]);
    average_[i].copy_(weights);
  }
  model_.weights_changed();
}

ScopeGuard WeightAverage::use() {
  exchange();
  return ScopeGuard([this] { exchange(); });
}

std::vector<shard::Slice> WeightAverage::state() {
  auto slices = averaged_of(model_.weights());
  for (std::size_t i = 0; i < slices.size(); ++i) slices[i].value = average_[i];
  return slices;
}

std::int64_t WeightAverage::bytes() const {
  std::size_t bytes = 0;
  for (const auto& tensor : average_) bytes += tensor.nbytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace trireme
