#include "core/booster/step_reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace trireme {

StepReduction::StepReduction(comm::Mesh& mesh) : group_(mesh.world().group()) {
  const auto summed = mesh.axes(&comm::AxisKind::sums_losses);
  const auto axes = mesh.axes();
  has_copy_ = std::any_of(axes.begin(), axes.end(), [&](const std::string& axis) {
    return mesh.coordinate(axis) != 0 && std::find(summed.begin(), summed.end(), axis) == summed.end();
  });
}

StepReduction::Sums StepReduction::start(const at::Tensor& part) {
  if (!requests_.defined()) requests_ = at::zeros({2}, part.options());
  if (request_ != on_device_) {
    requests_[0].fill_(request_.by_signal ? 1 : 0);
    requests_[1].fill_(request_.by_time ? 1 : 0);
    on_device_ = request_;
  }
  const auto loss = has_copy_ ? at::zeros_like(part) : part;
  auto sums = at::cat({loss.reshape({1}), requests_});
  auto sent = group_.all_reduce_async(sums);
  return {sums[0], sums.narrow(0, 1, 2), std::move(sent)};
}

}  // namespace trireme
