#include <ATen/TensorOperators.h>

#include "core/optim/optimizers.h"
#include "core/optim/slots.h"

namespace trireme::optim {
namespace {

class Lion final : public SlotwiseOptimizer {
 public:
  Lion(const LionOptions& options, const OptimizerOptions& common, std::vector<ParamGroup> groups)
      : SlotwiseOptimizer(std::move(groups), {"exp_avg"}),
        options_(options),
        text_(detail::description("Lion(", common, fmt::format(", betas {}/{}", options.betas[0], options.betas[1]),
                                  groups_)) {}
  [[nodiscard]] std::string describe() const override { return text_; }

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
  std::string text_;
};

}  // namespace

OptimizerFactory lion(LionOptions options) {
  static const auto fields =
      Fields<LionOptions>("optimizer", "The sign of the momentum; needs a learning rate 3 to 10 times below AdamW's.")
          .with("name", "lion")
          .add("betas", &LionOptions::betas, "The momentum's part in the update, and the decay rate of the momentum.",
               {.min = 0, .below = 1, .length = 2});
  return detail::factory_of<Lion>(fields, std::move(options));
}

}  // namespace trireme::optim
