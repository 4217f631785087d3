#include "core/optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "core/base/error.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

struct SgdLists {
  std::vector<at::Tensor> values, grads, buffers;
};

}  // namespace

static const Fields<SgdOptions>& sgd_fields() {
  using O = SgdOptions;
  static const auto table =
      Fields<O>("optimizer", "Gradient descent with momentum.")
          .with("name", "sgd")
          .add("momentum", &O::momentum, "Momentum factor.", {.min = 0, .below = 1})
          .add("nesterov", &O::nesterov, "Use Nesterov momentum; needs momentum above 0 and dampening 0.")
          .add("dampening", &O::dampening, "Dampening of the momentum.", {.min = 0, .max = 1})
          .rule([](const O& o, const CheckedSection& section) {
            if (o.nesterov && o.momentum == 0)
              section.fail("nesterov", "needs momentum above 0; set optimizer.momentum, or remove nesterov");
            if (o.nesterov && o.dampening != 0)
              section.fail("nesterov", fmt::format("needs dampening = 0, not {}; remove one of the two", o.dampening));
            if (o.dampening != 0 && o.momentum == 0)
              section.fail("dampening", "has no effect without momentum; set optimizer.momentum, or remove dampening");
          });
  return table;
}

OptimizerFactory sgd(SgdOptions options) {
  return {sgd_fields(), options,
          [](const SgdOptions& own, const OptimizerOptions& common, std::vector<ParamGroup> groups) {
            return std::make_unique<Sgd>(own, common.lr, common.weight_decay, std::move(groups));
          }};
}

Sgd::Sgd(const SgdOptions& options, double base_lr, double weight_decay, std::vector<ParamGroup> groups)
    : Optimizer(std::move(groups)), options_(options), base_lr_(base_lr), weight_decay_(weight_decay) {
  detail::check_slots(groups_);
  for (const auto& group : groups_) momenta_.emplace_back(group.slots.size());
}

void Sgd::make_momentum(const at::Tensor& value, Momentum& momentum) const {
  if (options_.momentum == 0 || momentum.buffer.defined()) return;
  const auto plain = value.detach();
  momentum.buffer = detail::zeros_beside(plain);
  if (options_.dampening != 0) momentum.step = at::zeros({}, plain.options().dtype(at::kFloat));
}

void Sgd::step(double lr, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    TRIREME_CHECK(momenta_[g].size() == group.slots.size(), "the parameters of group {} have changed", group.label);
    if (options_.momentum != 0 && options_.dampening != 0) {
      step_dampened(lr * group.lr_scale, group, momenta_[g], found_inf);
      continue;
    }
    detail::Batches<SgdLists> batches;
    for (std::size_t s = 0; s < group.slots.size(); ++s) {
      const auto& slot = group.slots[s];
      if (!slot.grad.defined()) continue;
      auto& lists = batches.of(slot);
      lists.values.push_back(slot.value);
      lists.grads.push_back(detail::gradient_for(slot));
      if (options_.momentum == 0) continue;
      make_momentum(slot.value, momenta_[g][s]);
      lists.buffers.push_back(momenta_[g][s].buffer);
    }
    batches.for_each(found_inf, [&](SgdLists& lists, const at::Tensor& flag) {
      std::optional<at::Tensor> skip;
      if (flag.defined()) skip = flag;
      // Without dampening, a zero buffer takes the first gradient unchanged, so is_first_step is not needed. With it, a
      // skipped first step would leave a buffer that the kernel never wrote, but would read in the next step.
      at::_fused_sgd_(lists.values, lists.grads, lists.buffers, group.weight_decay, options_.momentum,
                      lr * group.lr_scale, options_.dampening, options_.nesterov, /*maximize=*/false,
                      /*is_first_step=*/false, /*grad_scale=*/{}, skip);
    });
  }
}

// Uses plain operations: the kernel's first-step flag applies to all tensors and must be known on the host.
void Sgd::step_dampened(double lr, const ParamGroup& group, std::vector<Momentum>& momenta,
                        const at::Tensor& found_inf) const {
  for (std::size_t s = 0; s < group.slots.size(); ++s) {
    const auto& slot = group.slots[s];
    if (!slot.grad.defined()) continue;
    make_momentum(slot.value, momenta[s]);
    auto& [buffer, count] = momenta[s];
    auto value = slot.value.detach();  // shares memory
    auto grad = slot.grad.to(value.scalar_type());
    if (group.weight_decay != 0) grad = grad.add(value, group.weight_decay);
    // 1 for the first gradient, 1 - dampening for all later ones.
    const auto weight = count.to(value.scalar_type()).clamp_max(1).mul(-options_.dampening).add(1);
    const auto next = buffer.mul(options_.momentum).add_(grad.mul(weight));
    const auto update = options_.nesterov ? grad.add(next, options_.momentum) : next;
    if (!found_inf.defined() && !slot.skip.defined()) {
      value.sub_(update, lr);
      buffer.copy_(next);
      count.add_(1);
      continue;
    }
    const auto skip = slot.skip.defined() ? detail::either(found_inf, slot.skip, value.device())
                                          : detail::skip_flag(found_inf, value.device());
    const auto skipped = skip.ne(0);  // selected with where(), not multiplied: 0 * inf is not 0
    value.copy_(at::where(skipped, value, value.sub(update, lr)));
    buffer.copy_(at::where(skipped, buffer, next));
    count.add_(skip.eq(0));
  }
}

std::vector<NamedState> Sgd::state() {
  std::vector<NamedState> out;
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (std::size_t s = 0; s < groups_[g].slots.size(); ++s) {
      const auto& slot = groups_[g].slots[s];
      auto& momentum = momenta_[g][s];
      make_momentum(slot.value, momentum);
      if (momentum.buffer.defined()) out.push_back({slot.name, "momentum_buffer", momentum.buffer});
      if (momentum.step.defined()) out.push_back({slot.name, "step", momentum.step});
    }
  return out;
}

std::int64_t Sgd::state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& group : momenta_)
    for (const auto& momentum : group) {
      if (momentum.buffer.defined()) bytes += momentum.buffer.nbytes();
      if (momentum.step.defined()) bytes += momentum.step.nbytes();
    }
  return static_cast<std::int64_t>(bytes);
}

std::string Sgd::describe() const {
  std::string text = fmt::format("SGD(lr {}", base_lr_);
  if (options_.momentum != 0)
    text += fmt::format(", {}momentum {}", options_.nesterov ? "Nesterov " : "", options_.momentum);
  if (options_.dampening != 0) text += fmt::format(", dampening {}", options_.dampening);
  return text + fmt::format(", weight decay {}{})", weight_decay_, detail::special(groups_));
}

}  // namespace trireme::optim
