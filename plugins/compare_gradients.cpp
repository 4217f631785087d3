#include "plugins/compare_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::plugins {

void compare_gradients(const comm::Group& group, const std::string& key, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  if (gradients.empty()) return;
  at::TensorOptions like;
  for (const auto& gradient : gradients)
    if (gradient.defined()) like = gradient.options();
  std::vector<at::Tensor> sums;
  for (const auto& gradient : gradients)
    sums.push_back(gradient.defined() ? gradient.sum(at::kDouble) : at::zeros({}, like.dtype(at::kDouble)));
  const auto mine = at::nan_to_num(at::stack(sums));
  auto extremes = at::stack({mine, -mine});
  group.all_reduce(extremes, comm::ReduceOp::max);
  const auto differs = (extremes[0] + extremes[1]).ne(0).to(at::kCPU);
  std::vector<std::string> different;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (differs[static_cast<std::int64_t>(i)].item<bool>()) different.push_back(names[i]);
  if (!different.empty())
    throw CommError(fmt::format("{}: after the reduction the ranks hold different gradients of {}", key,
                                text::first_few(different)));
}

}  // namespace trireme::plugins
