// Optimizers over named tensors. The caller passes the tensors that it owns (whole parameters under DDP, slices and
// fp32 master weights under ZeRO); an optimizer knows nothing about layouts. Results equal torch.optim.AdamW / Adam /
// SGD.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/factory.h"
#include "core/base/registry.h"

namespace trireme::optim {

/// A tensor to update. `grad` is read at step(); if it is undefined, the tensor is not changed (nor decayed).
struct Slot {
  std::string name;
  at::Tensor value;
  at::Tensor grad;
  at::Tensor skip = {};  ///< undefined, or a 0-dim flag on the device: nonzero skips this tensor, like found_inf
};

/// Slots with the same hyper-parameters.
struct ParamGroup {
  std::string label;  ///< "decay" or "no_decay", after the patterns of a [[optimizer.group]]: "classifier no_decay"
  double weight_decay = 0;
  double lr_scale = 1;
  std::vector<Slot> slots;
};

/// One state tensor: {"vit...weight", "exp_avg", tensor}. It is the optimizer's own; writing to it sets the state.
struct NamedState {
  std::string parameter;
  std::string key;
  at::Tensor tensor;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Whether step() needs sums over whole parameters (LAMB, LARS). A caller whose slots are slices of parameters then
  /// calls slice_sums() first, and adds each row of the result in place over the ranks that hold the other slices.
  [[nodiscard]] virtual bool needs_slice_sums() const { return false; }
  /// Takes the gradients in. Returns this rank's part of the sums that the next step() uses: float64 [slots, K], in the
  /// order of the groups and their slots.
  virtual at::Tensor slice_sums(const at::Tensor& /*found_inf*/) { return {}; }
  [[nodiscard]] std::vector<ParamGroup>& groups() { return groups_; }

  /// One update with this learning rate. `found_inf`: undefined, or a float32 0-dim tensor on the device. If it is
  /// nonzero nothing changes; this is decided on the device (no host synchronisation).
  virtual void step(double lr, const at::Tensor& found_inf = {}) = 0;
  /// The state tensors, created as zeros if they do not exist yet. "step" is one 0-dim float32 tensor per parameter.
  virtual std::vector<NamedState> state() = 0;
  /// Current bytes of state.
  [[nodiscard]] virtual std::int64_t state_bytes() const = 0;
  /// "HybridAdam(lr 5e-4, betas 0.9/0.999, weight decay 0.05)"
  [[nodiscard]] virtual std::string describe() const = 0;

 protected:
  explicit Optimizer(std::vector<ParamGroup> groups) : groups_(std::move(groups)) {}
  std::vector<ParamGroup> groups_;
};

struct OptimizerOptions;
/// Makes an optimizer for groups of tensors: hybrid_adam(), sgd(), or a program's own.
using OptimizerFactory =
    Factory<std::unique_ptr<Optimizer>(const OptimizerOptions& options, std::vector<ParamGroup> groups)>;
OptimizerFactory hybrid_adam();
/// Those that [optimizer] name selects.
Registry<OptimizerFactory> all_optimizers();

/// Parameters with their own learning rate or weight decay.
struct GroupOptions {
  std::vector<std::string> parameters{};  ///< name patterns
  double lr_scale = 1;                    ///< of the schedule's learning rate
  std::optional<double> weight_decay{};   ///< unset: that of all parameters
};
/// The keys of [[optimizer.group]].
const Fields<GroupOptions>& group_fields();

/// What every optimizer has, and the method by which it updates.
struct OptimizerOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  std::vector<std::string> no_decay{};  ///< name patterns without weight decay
  std::vector<std::string> freeze{};    ///< name patterns that are not trained
  std::vector<GroupOptions> groups{};   ///< a parameter belongs to the first whose patterns match its name
  OptimizerFactory method = hybrid_adam();
};
/// Why no_decay has no effect, or "".
std::string problem_of_no_decay(const OptimizerOptions& options);
/// The keys of [optimizer] that all optimizers have.
const Fields<OptimizerOptions>& optimizer_fields();
/// @throws ConfigError that names the key and its rule
void check_options(const OptimizerOptions& options);

struct NamedTensor {
  std::string name;
  at::Tensor value;
  bool frozen = false;  ///< the model does not train it, as the weights under adapters (core/nn/layers/lora.h)
};
/// Groups the parameters by options.groups, no_decay and freeze. Frozen ones get requires_grad = false and no slot.
/// @throws ConfigError for a pattern that matches nothing, and for a group that has no effect, such as one to which no
/// parameter is left; its message begins with the key, "optimizer.group[2].parameters: " for the second group
std::vector<ParamGroup> make_groups(const OptimizerOptions& options, const std::vector<NamedTensor>& parameters);

/// The groups as blocks [[optimizer.group]] of a file; "" without any.
std::string print_groups(const OptimizerOptions& options);

/// @throws ConfigError as check_options()
std::unique_ptr<Optimizer> make(const OptimizerOptions& options, std::vector<ParamGroup> groups);

}  // namespace trireme::optim
