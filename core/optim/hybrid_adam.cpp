#include "core/optim/hybrid_adam.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

struct AdamLists {
  std::vector<at::Tensor> values, grads, exp_avgs, exp_avg_sqs, steps;
};

}  // namespace

static const Fields<HybridAdamOptions>& hybrid_adam_fields() {
  using O = HybridAdamOptions;
  static const auto table =
      Fields<O>("optimizer", "AdamW or Adam, fused.")
          .with("name", "hybrid_adam")
          .add("betas", &O::betas, "Decay rates of the running averages of the gradient and of its square.",
               {.min = 0, .below = 1, .length = 2})
          .add("eps", &O::eps, "Added to the denominator of the update, for numerical stability.", {.min = 0})
          .add("adamw", &O::adamw,
               "true: weight decay is applied to the weights (AdamW); false: it is added to the gradient (Adam with L2 "
               "regularization).");
  return table;
}

OptimizerFactory hybrid_adam(HybridAdamOptions options) {
  return {hybrid_adam_fields(), std::move(options),
          [](const HybridAdamOptions& own, const OptimizerOptions& common, std::vector<ParamGroup> groups) {
            return std::make_unique<HybridAdam>(own, common.lr, common.weight_decay, std::move(groups));
          }};
}
OptimizerFactory hybrid_adam() { return hybrid_adam(HybridAdamOptions{}); }

HybridAdam::HybridAdam(const HybridAdamOptions& options, double base_lr, double weight_decay,
                       std::vector<ParamGroup> groups)
    : Optimizer(std::move(groups)), options_(options), base_lr_(base_lr), weight_decay_(weight_decay) {
  detail::check_slots(groups_);
  for (const auto& group : groups_) moments_.emplace_back(group.slots.size());
}

void HybridAdam::make_moments(const at::Tensor& value, Moments& moments) {
  if (moments.step.defined()) return;
  const auto plain = value.detach();
  moments.exp_avg = detail::zeros_beside(plain);
  moments.exp_avg_sq = detail::zeros_beside(plain);
  moments.step = at::zeros({}, plain.options().dtype(at::kFloat));
}

void HybridAdam::step(double lr, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  const auto update = options_.adamw ? &at::_ops::_fused_adamw_::call : &at::_ops::_fused_adam_::call;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    TRIREME_CHECK(moments_[g].size() == group.slots.size(), "the parameters of group {} have changed", group.label);
    detail::Batches<AdamLists> batches;
    for (std::size_t s = 0; s < group.slots.size(); ++s) {
      const auto& slot = group.slots[s];
      if (!slot.grad.defined()) continue;
      auto& moments = moments_[g][s];
      make_moments(slot.value, moments);
      auto& lists = batches.of(slot);
      lists.values.push_back(slot.value);
      lists.grads.push_back(detail::gradient_for(slot));
      lists.exp_avgs.push_back(moments.exp_avg);
      lists.exp_avg_sqs.push_back(moments.exp_avg_sq);
      lists.steps.push_back(moments.step);
    }
    batches.for_each(found_inf, [&](AdamLists& lists, const at::Tensor& flag) {
      std::optional<at::Tensor> skip;
      if (flag.defined()) skip = flag;
      // The kernel reads the step count that includes this step; a skipped step does not count.
      if (skip)
        at::_foreach_add_(lists.steps, skip->eq(0).to(at::kFloat));
      else
        at::_foreach_add_(lists.steps, 1);
      update(lists.values, lists.grads, lists.exp_avgs, lists.exp_avg_sqs, {}, lists.steps, lr * group.lr_scale,
             options_.betas[0], options_.betas[1], group.weight_decay, options_.eps, /*amsgrad=*/false,
             /*maximize=*/false, /*grad_scale=*/{}, skip);
    });
  }
}

std::vector<NamedState> HybridAdam::state() {
  std::vector<NamedState> out;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t s = 0; s < groups_[g].slots.size(); ++s) {
      const auto& slot = groups_[g].slots[s];
      auto& moments = moments_[g][s];
      make_moments(slot.value, moments);
      out.push_back({slot.name, "exp_avg", moments.exp_avg});
      out.push_back({slot.name, "exp_avg_sq", moments.exp_avg_sq});
      out.push_back({slot.name, "step", moments.step});
    }
  return out;
}

std::int64_t HybridAdam::state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : moments_)
    for (const auto& moments : group)
      if (moments.step.defined())
        bytes += moments.exp_avg.nbytes() + moments.exp_avg_sq.nbytes() + moments.step.nbytes();
  return static_cast<std::int64_t>(bytes);
}

std::string HybridAdam::describe() const {
  return fmt::format("HybridAdam({}lr {}, betas {}/{}, weight decay {}{})", options_.adamw ? "" : "L2, ", base_lr_,
                     options_.betas[0], options_.betas[1], weight_decay_, detail::special(groups_));
}

}  // namespace trireme::optim
