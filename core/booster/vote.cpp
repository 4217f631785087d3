#include "core/booster/vote.h"

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
  if (!numbers_.defined()) numbers_ = at::zeros({static_cast<std::int64_t>(kVotes)}, part.options());
  for (std::size_t i = 0; i < kVotes; ++i) {
    if (votes_[i] == on_device_[i]) continue;
    numbers_[static_cast<std::int64_t>(i)].fill_(votes_[i] ? 1 : 0);
    on_device_[i] = votes_[i];
  }
  const auto loss = has_copy_ ? at::zeros_like(part) : part;
  auto sums = at::cat({loss.reshape({1}), numbers_});
  auto sent = group_.all_reduce_async(sums);
  return {sums[0], sums.slice(0, 1), std::move(sent)};
}

}  // namespace trireme
