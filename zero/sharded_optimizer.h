// ShardedOptimizer: updates this rank's slices of the parameters, in every stage of ZeRO. Moments exist only for the
// slices that the rank owns: P/N elements each.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/boosted.h"
#include "core/booster/plugin.h"
#include "core/comm/mesh.h"
#include "zero/sharded_model.h"

namespace trireme::zero {

class ShardedOptimizer : public BoostedOptimizer {
 public:
  struct Norm {
    std::vector<std::string> axes;  ///< along which ranks may hold different slices, see shard::global_norm
    double power = 2;               ///< of the norm that is reported and clipped: 2 or infinity
  };
  /// The model must outlive the optimizer. `before_step`, if set, is called at the start of each update.
  ShardedOptimizer(ShardedModel& model, const BoostOptions& options, Norm norm, comm::Mesh& mesh,
                   std::function<void()> before_step = {});
  void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) override;
  void zero_grad() override;
  std::vector<shard::Slice> state() override;
  optim::LossScaler& scaler() override { return scaler_; }
  OptimizerReport report() const override {
    return {.state_bytes = bytes_where([](const Residency&) { return true; }),
            .host_state_bytes = bytes_where([](const Residency& residency) { return residency.offload_master; }),
            .gradient_bytes = gradient_bytes_,
            .description = description_};
  }

 protected:
  StepResult apply_gradients(double lr) override;

 private:
  struct Part {  ///< the update of one bucket
    std::unique_ptr<optim::Optimizer> optimizer;
    std::vector<std::size_t> items;  ///< the item of each slot, group by group
  };
  Part make_part(std::size_t bucket) const;
  void follow(std::size_t bucket);
  std::int64_t bytes_where(const std::function<bool(const Residency&)>& counts) const;
  at::Tensor norm_of(const std::vector<at::Tensor>& parts);
  /// Whether any bucket is updated in host memory.
  bool offloads() const;
  struct Decision {  ///< the same on all ranks; 0-dim, on the device of the update
    at::Tensor factor, skip;
  };
  void add_slice_sums(const std::function<const Decision&(std::size_t bucket)>& decision);
  void set_gradients(std::size_t bucket, const Decision& decision);
  void update(std::size_t bucket, double lr, const Decision& decision);

  ShardedModel& model_;
  optim::OptimizerOptions options_;
  Norm norm_;
  std::function<void()> before_step_;
  comm::Mesh& mesh_;
  std::vector<std::string> slice_axes_;          ///< along which ranks may hold other slices of the same parameters
  std::vector<optim::ParamGroup> groups_;        ///< the parameter groups of the user's patterns, without slots
  std::map<std::string, std::size_t> group_of_;  ///< of each trained parameter, by name
  std::vector<Part> parts_;                      ///< of each trained bucket
  optim::LossScaler scaler_;
  std::string description_;
  std::int64_t gradient_bytes_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< expires with this object; the model's callback
                                                                ///< checks it
};

}  // namespace trireme::zero
