#include "core/booster/step_reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>

namespace trireme {

StepReduction::StepReduction(comm::Mesh& mesh) : group_(mesh.world().group()) {
  const auto summed = mesh.axes(&comm::AxisKind::sums_losses);
  const auto axes = mesh.axes();
  has_copy_ = std::any_of(axes.begin(), axes.end(), [&](const std::string& axis) {
    return mesh.coordinate(axis) != 0 && std::find(summed.begin(), summed.end(), axis) == summed.end();
  });
}

StepReduction::Sums StepReduction::start(const at::Tensor& part) {
  if (!numbers_.defined()) numbers_ = at::zeros({5}, part.options());
  if (flags_ != on_device_) {
    std::int64_t index = 0;
    for (const bool flag :
         {flags_.stop.by_signal, flags_.stop.by_time, flags_.save.is_busy, flags_.save.has_failed, flags_.has_failed})
      numbers_[index++].fill_(flag ? 1 : 0);
    on_device_ = flags_;
  }
  const auto loss = has_copy_ ? at::zeros_like(part) : part;
  auto sums = at::cat({loss.reshape({1}), numbers_});
  auto sent = group_.all_reduce_async(sums);
  return {sums[0], sums.narrow(0, 1, 2), sums.narrow(0, 3, 2), sums[5], std::move(sent)};
}

}  // namespace trireme
