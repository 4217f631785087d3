// SGD with momentum, dampening, Nesterov momentum and L2 weight decay, as in torch.optim.SGD.
// Method: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
#pragma once

#include "core/optim/optimizer.h"

namespace trireme::optim {

struct SgdOptions {
  double momentum = 0;
  bool nesterov = false;
  double dampening = 0;
};
OptimizerFactory sgd(SgdOptions options = {});

/// State of each slot: momentum_buffer (if momentum is not 0), and with dampening also step (float32 0-dim), because
/// the first gradient enters the buffer undampened and only the device knows whether a step was skipped.
class Sgd final : public Optimizer {
 public:
  Sgd(const SgdOptions& options, double base_lr, double weight_decay, std::vector<ParamGroup> groups);

  void step(double lr, const at::Tensor& found_inf = {}) override;
  std::vector<NamedState> state() override;
  [[nodiscard]] std::int64_t state_bytes() const override;
  [[nodiscard]] std::string describe() const override;

 private:
  struct Momentum {
    at::Tensor buffer, step;  ///< undefined until the slot's first gradient
  };
  void make_momentum(const at::Tensor& value, Momentum& momentum) const;
  void step_dampened(double lr, const ParamGroup& group, std::vector<Momentum>& momenta,
                     const at::Tensor& found_inf) const;

  SgdOptions options_;
  double base_lr_, weight_decay_;               ///< for describe()
  std::vector<std::vector<Momentum>> momenta_;  ///< [group][slot]
};

}  // namespace trireme::optim
