#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>

#include "core/optim/optimizers.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

struct SgdLists {
  std::vector<at::Tensor> values, grads, buffers;
};

class Sgd final : public detail::SlotOptimizer {
 public:
  Sgd(const SgdOptions& options, const OptimizerOptions& common, std::vector<ParamGroup> groups)
      : SlotOptimizer(std::move(groups), keys_of(options)),
        options_(options),
        text_(detail::description("SGD(", common, text_of(options), groups_)) {}

  void step(double lr, const at::Tensor& found_inf) override {
    const at::NoGradGuard no_grad;
    const bool dampened = options_.momentum != 0 && options_.dampening != 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& group = groups_[g];
      detail::Batches<SgdLists> batches;
      for (std::size_t s = 0; s < group.slots.size(); ++s) {
        const auto& slot = group.slots[s];
        if (!slot.grad.defined()) continue;
        auto& state = states_.of(group, g, s);
        if (dampened) {
          update_dampened(lr * group.lr_scale, group.weight_decay, slot, state, found_inf);
          continue;
        }
        auto& lists = batches.of(slot);
        lists.values.push_back(slot.value);
        lists.grads.push_back(detail::gradient_for(slot));
        if (options_.momentum != 0) lists.buffers.push_back(state[0]);
      }
      batches.for_each(found_inf, [&](SgdLists& lists, const std::optional<at::Tensor>& skip) {
        // Without dampening, a zero buffer takes the first gradient unchanged, so is_first_step is not needed. With it,
        // a skipped first step would leave a buffer that the kernel never wrote, but would read in the next step.
        at::_fused_sgd_(lists.values, lists.grads, lists.buffers, group.weight_decay, options_.momentum,
                        lr * group.lr_scale, options_.dampening, options_.nesterov, /*maximize=*/false,
                        /*is_first_step=*/false, /*grad_scale=*/{}, skip);
      });
    }
  }
  [[nodiscard]] std::string describe() const override { return text_; }

 private:
  static std::vector<std::string> keys_of(const SgdOptions& options) {
    if (options.momentum == 0) return {};
    if (options.dampening == 0) return {"momentum_buffer"};
    return {"momentum_buffer", "step"};
  }
  static std::string text_of(const SgdOptions& options) {
    std::string text;
    if (options.momentum != 0)
      text += fmt::format(", {}momentum {}", options.nesterov ? "Nesterov " : "", options.momentum);
    if (options.dampening != 0) text += fmt::format(", dampening {}", options.dampening);
    return text;
  }

  /// Uses plain operations: the kernel's first-step flag applies to all tensors and must be known on the host.
  void update_dampened(double lr, double weight_decay, const Slot& slot, std::vector<at::Tensor>& state,
                       const at::Tensor& found_inf) const {
    auto &buffer = state[0], &count = state[1];
    auto value = slot.value.detach();  // shares memory
    detail::Undo undo(slot, value, state, found_inf);
    auto grad = slot.grad.to(value.scalar_type());
    if (weight_decay != 0) grad = grad.add(value, weight_decay);
    // 1 for the first gradient, 1 - dampening for all later ones.
    const auto weight = count.to(value.scalar_type()).clamp_max(1).mul(-options_.dampening).add(1);
    buffer.mul_(options_.momentum).add_(grad.mul(weight));
    value.sub_(options_.nesterov ? grad.add(buffer, options_.momentum) : buffer, lr);
    count.add_(1);
    undo.finish();
  }

  SgdOptions options_;
  std::string text_;
};

const Fields<SgdOptions>& sgd_fields() {
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

}  // namespace

OptimizerFactory sgd(SgdOptions options) { return detail::factory_of<Sgd>(sgd_fields(), options); }

}  // namespace trireme::optim
