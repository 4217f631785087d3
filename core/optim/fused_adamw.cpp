#include "core/optim/fused_adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

/// The state of a parameter, made at its first gradient.
torch::optim::AdamWParamState& state_of(
    ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>& states,
    const at::Tensor& parameter) {
  auto& state = states[parameter.unsafeGetTensorImpl()];
  if (!state) {
    auto made = std::make_unique<torch::optim::AdamWParamState>();
    made->exp_avg(at::zeros_like(parameter.detach()));
    made->exp_avg_sq(at::zeros_like(parameter.detach()));
    state = std::move(made);
  }
  return static_cast<torch::optim::AdamWParamState&>(*state);
}

}  // namespace

at::Tensor FusedAdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_graph(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    TRIREME_REQUIRE(!options.amsgrad(), "FusedAdamW has no amsgrad; use torch::optim::AdamW for it");
    std::map<std::int64_t, detail::ByKind<detail::AdamLists>> batches;  // by step
    for (const auto& parameter : group.params()) {
      const auto& grad = parameter.grad();
      if (!grad.defined()) continue;
      TRIREME_REQUIRE(!grad.is_sparse(), "FusedAdamW takes no sparse gradients; use torch::optim::SGD for them");
      auto& state = state_of(state_, parameter);
      state.step(state.step() + 1);
      auto& lists = batches[state.step()][detail::kind_of(parameter)];
      lists.values.push_back(parameter);
      lists.grads.push_back(detail::gradient_for({.name = "", .value = parameter, .grad = grad}));
      lists.exp_avgs.push_back(state.exp_avg());
      lists.exp_avg_sqs.push_back(state.exp_avg_sq());
    }
    for (auto& [at_step, kinds] : batches)
      for (auto& [kind, lists] : kinds) {
        const auto count = at::full({}, static_cast<double>(at_step), at::TensorOptions(at::kFloat).device(kind.first));
        lists.steps.assign(lists.values.size(), count);
        at::_fused_adamw_(lists.values, lists.grads, lists.exp_avgs, lists.exp_avg_sqs, {}, lists.steps, options.lr(),
                          std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
                          options.eps(), /*amsgrad=*/false, /*maximize=*/false);
      }
  }
  return loss;
}

}  // namespace trireme::optim
