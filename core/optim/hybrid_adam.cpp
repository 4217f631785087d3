#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "core/optim/optimizers.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

/// Learning rate and eps stay double up to the kernel, so float64 parameters are updated in true double precision.
class HybridAdam final : public detail::SlotOptimizer {
 public:
  HybridAdam(const HybridAdamOptions& options, const OptimizerOptions& common, std::vector<ParamGroup> groups)
      : SlotOptimizer(std::move(groups), {"exp_avg", "exp_avg_sq", "step"}),
        options_(options),
        text_(detail::description(options.adamw ? "HybridAdam(" : "HybridAdam(L2, ", common,
                                  fmt::format(", betas {}/{}", options.betas[0], options.betas[1]), groups_)) {}

  void step(double lr, const at::Tensor& found_inf) override {
    const at::NoGradGuard no_grad;
    const auto update = options_.adamw ? &at::_ops::_fused_adamw_::call : &at::_ops::_fused_adam_::call;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& group = groups_[g];
      detail::Batches<detail::AdamLists> batches;
      for (std::size_t s = 0; s < group.slots.size(); ++s) {
        const auto& slot = group.slots[s];
        if (!slot.grad.defined()) continue;
        const auto& state = states_.of(group, g, s);
        auto& lists = batches.of(slot);
        lists.values.push_back(slot.value);
        lists.grads.push_back(detail::gradient_for(slot));
        lists.exp_avgs.push_back(state[0]);
        lists.exp_avg_sqs.push_back(state[1]);
        lists.steps.push_back(state[2]);
      }
      batches.for_each(found_inf, [&](detail::AdamLists& lists, const std::optional<at::Tensor>& skip) {
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
  [[nodiscard]] std::string describe() const override { return text_; }

 private:
  HybridAdamOptions options_;
  std::string text_;
};

const Fields<HybridAdamOptions>& hybrid_adam_fields() {
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

}  // namespace

OptimizerFactory hybrid_adam(HybridAdamOptions options) {
  return detail::factory_of<HybridAdam>(hybrid_adam_fields(), std::move(options));
}
OptimizerFactory hybrid_adam() { return hybrid_adam(HybridAdamOptions{}); }

}  // namespace trireme::optim
