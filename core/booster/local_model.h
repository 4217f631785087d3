// LocalModel: runs this rank's blocks with the parameters that it holds, and reduces nothing; LocalOptimizer updates
// them. A single process is no more than these two; the plugins derive theirs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/booster/boosted.h"
#include "core/booster/plugin.h"
#include "core/booster/precision.h"
#include "core/comm/mesh.h"

namespace trireme::nn {
class ActivationOffload;
class Block;
}  // namespace trireme::nn

namespace trireme {

/// Allocates a source's model on the device, draws its parameters by name from the seed, and loads weights, if any.
std::vector<nn::Parameter> materialize_whole(ModelSource& source, const BoostOptions& options, c10::Device device,
                                             const Log& log);

/// What a plugin does around the blocks of a forward pass. Each function may be null.
struct BlockHooks {
  using Pass = std::function<nn::Tensors(const std::shared_ptr<nn::Block>& block, nn::Tensors tensors)>;
  std::function<void()> begin{};  ///< before the first block that forward_blocks() runs
  Pass before{};                  ///< takes and returns a block's inputs
  Pass after{};                   ///< takes and returns its outputs
};

/// The forward pass in the run's precision, with the kernels and the recomputation that [train] chooses; no reduction.
/// For a model in pipeline stages, the plugin that partitions it chooses the kernels and the blocks to recompute.
class LocalModel : public BoostedModel {
 public:
  LocalModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters, const BoostOptions& options,
             c10::Device device);
  /// Uses another precision than the options.
  LocalModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters, const BoostOptions& options,
             const Precision& precision, c10::Device device);
  nn::Tensors forward(const data::Batch& batch) override;
  /// What the first block receives of a batch, in the precision's dtype of inputs.
  [[nodiscard]] nn::Tensors first_inputs(const data::Batch& batch) const;
  /// Runs blocks [begin, end) of the forward pass on `inputs`: the outputs of the block before, or first_inputs().
  nn::Tensors forward_blocks(std::size_t begin, std::size_t end, nn::Tensors inputs, const data::Batch& batch);
  /// Converts the last block's outputs to the dtype that a criterion gets.
  [[nodiscard]] nn::Tensors as_outputs(nn::Tensors made) const;
  /// Restricts recomputation, if it is enabled, to the blocks of the model with true, and recomputes the layers of the
  /// others that [train] chooses.
  void recompute_only(const std::vector<bool>& blocks);
  void note(std::string line) { notes_.push_back(std::move(line)); }
  ScopeGuard no_sync() override { return ScopeGuard({}); }
  void train(bool on) override;
  nn::Model& module() override { return *model_; }
  std::vector<shard::Slice> weights() override;
  std::vector<shard::Slice> gradients() override;
  ModelReport report() const override;
  void watch_blocks(BlockWatch watch) override { watch_ = std::move(watch); }
  std::vector<nn::Parameter>& parameters() { return parameters_; }

 protected:
  [[nodiscard]] bool training() const { return training_; }
  void set_block_hooks(BlockHooks hooks) { hooks_ = std::move(hooks); }

 private:
  nn::Tensors run(const std::shared_ptr<nn::Block>& block, nn::Tensors inputs, const nn::Context& context);
  [[nodiscard]] at::Tensor cast(const at::Tensor& input) const;
  [[nodiscard]] std::uint64_t draw_key(const data::Batch& batch, std::size_t block) const;
  std::shared_ptr<nn::Model> model_;
  std::vector<nn::Parameter> parameters_;
  Precision precision_;
  TrainOptions train_options_;
  bool training_ = false;
  BlockHooks hooks_;
  BlockWatch watch_;
  std::vector<std::string> notes_;
  std::unordered_set<const nn::Block*> not_recomputed_;  ///< blocks that are not recomputed whole
  std::shared_ptr<nn::ActivationOffload> offload_;       ///< of the recomputed blocks' inputs, or null
  std::uint64_t seed_;
  c10::Device device_;
};

/// Gradients are equal on every rank when step() runs, so norm, clipping and update need no communication.
class LocalOptimizer : public BoostedOptimizer {
 public:
  LocalOptimizer(std::vector<nn::Parameter>& parameters, const BoostOptions& options, comm::Mesh& mesh);
  void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) override;
  void zero_grad() override;
  std::vector<shard::Slice> state() override;
  optim::LossScaler& scaler() override { return scaler_; }
  OptimizerReport report() const override {
    return {.state_bytes = optimizer_->state_bytes(),
            .gradient_bytes = gradient_bytes_,
            .description = optimizer_->describe()};
  }

 protected:
  StepResult apply_gradients(double lr) override;

 private:
  std::vector<nn::Parameter>& parameters_;
  comm::Mesh& mesh_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler scaler_;
  std::int64_t gradient_bytes_ = 0;
};

}  // namespace trireme
