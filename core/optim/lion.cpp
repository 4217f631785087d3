#include "core/optim/lion.h"

#include <ATen/TensorOperators.h>

#include "core/optim/slots.h"
#include "core/optim/slotwise.h"

namespace trireme::optim {
namespace {

class Lion final : public SlotwiseOptimizer {
 public:
  Lion(LionOptions options, double base_lr, double weight_decay, std::vector<ParamGroup> groups)
      : SlotwiseOptimizer(std::move(groups), {"exp_avg"}),
        options_(std::move(options)),
        base_lr_(base_lr),
        weight_decay_(weight_decay) {}
  [[nodiscard]] std::string describe() const override {
    return fmt::format("Lion(lr {}, betas {}/{}, weight decay {}{})", base_lr_, options_.betas[0], options_.betas[1],
                       weight_decay_, detail::special(groups_));
  }

 protected:
  void update(at::Tensor& value, const at::Tensor& grad, std::vector<at::Tensor>& state, double lr,
              double weight_decay) const override {
    auto& exp_avg = state[0];
    if (weight_decay != 0) value.mul_(1 - lr * weight_decay);
    value.sub_(exp_avg.lerp(grad, 1 - options_.betas[0]).sign_(), lr);
    exp_avg.lerp_(grad, 1 - options_.betas[1]);
  }

 private:
  LionOptions options_;
  double base_lr_, weight_decay_;
};

}  // namespace

OptimizerFactory lion(LionOptions options) {
  static const auto fields =
      Fields<LionOptions>("optimizer", "The sign of the momentum; needs a learning rate 3 to 10 times below AdamW's.")
          .with("name", "lion")
          .add("betas", &LionOptions::betas, "The momentum's part in the update, and the decay rate of the momentum.",
               {.min = 0, .below = 1, .length = 2});
  return {fields, std::move(options),
          [](const LionOptions& own, const OptimizerOptions& common, std::vector<ParamGroup> groups) {
            return std::make_unique<Lion>(own, common.lr, common.weight_decay, std::move(groups));
          }};
}

}  // namespace trireme::optim
