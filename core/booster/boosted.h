// The result of Booster::boost(): the model and the optimizer as the chosen plugin runs them.
//
//   for each step:  for each microbatch but the last: { auto guard = model.no_sync(); forward, loss, backward }
//                   the last: forward, loss, backward          (here gradients are reduced, see gradients())
//                   optimizer.step(lr); optimizer.zero_grad();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/booster/criterion.h"
#include "core/nn/parameters.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/optimizer.h"
#include "core/shard/placement.h"

namespace trireme {

/// Runs a function at the end of a scope: the guard of no_sync().
class [[nodiscard]] ScopeGuard {
 public:
  explicit ScopeGuard(std::function<void()> end) : end_(std::move(end)) {}
  ScopeGuard(ScopeGuard&& other) noexcept : end_(std::exchange(other.end_, nullptr)) {}
  ScopeGuard& operator=(ScopeGuard&&) = delete;
  ~ScopeGuard() {
    if (end_) end_();
  }

 private:
  std::function<void()> end_;
};

class BoostedOptimizer;
class BufferSync;

/// How this rank holds a model, for the header of a run, its summary and its messages.
struct ModelReport {
  std::int64_t parameter_bytes = 0;  ///< of the weights that the layers compute with; the optimizer has other masters
  std::int64_t peak_gathered_bytes = 0;      ///< peak of other ranks' weights held in addition
  std::vector<std::string> notes{};          ///< lines for the header of a run
  std::vector<std::string> memory_advice{};  ///< remedies when training runs out of memory: "lower plugin.NAME.KEY"
};

/// Observes the outputs of block `block` for a microbatch, or for a part of one.
using BlockWatch = std::function<void(std::size_t block, const data::Batch& batch, const nn::Tensors& outputs)>;

/// A model under a plugin.
class BoostedModel {
 public:
  virtual ~BoostedModel() = default;
  /// The forward pass of one microbatch, in the run's precision. In training, outputs keep their graph. A pipeline
  /// supports this only for evaluation: it is then collective over the pipeline stages, and only ranks of the last
  /// stage get outputs.
  virtual nn::Tensors forward(const data::Batch& batch) = 0;
  /// Runs forward and backward of all microbatches of a step and reduces the gradients. Returns this rank's part of the
  /// loss over the global batch, 0-dim; zero on a rank that does not compute the loss. `outputs`: if given, receives
  /// the model's outputs for each microbatch, without graph, on the ranks that have them. Collective. The default runs
  /// forward() and BoostedOptimizer::backward() for one microbatch after another; a pipeline has an order of its own.
  virtual at::Tensor forward_backward(const data::StepBatch& batch, const Criterion& criterion,
                                      BoostedOptimizer& optimizer, std::vector<nn::Tensors>* outputs);
  /// Whether ranks run different blocks, so that only forward_backward() can train the model.
  [[nodiscard]] virtual bool is_pipeline() const { return false; }
  /// While the guard exists, backward passes add to the local gradients without a reduction.
  virtual ScopeGuard no_sync() = 0;
  /// Whether a step reduces after each of its microbatches (and holds no full gradients) instead of once at its end.
  [[nodiscard]] virtual bool reduces_each_microbatch() const { return false; }
  /// Selects training (dropout, graph, reduction) or evaluation.
  virtual void train(bool on) = 0;
  [[nodiscard]] virtual nn::Model& module() = 0;
  /// Calls `change` for each model that computes here: module(), and the replicas of it that this process runs beside
  /// it. For choices that keep what the layers compute.
  virtual void for_each_module(const std::function<void(nn::Model&)>& change) { change(module()); }
  /// This rank's slices of the weights, in the precision in which they are updated; checkpoints store these. After
  /// writing to them, all ranks must call weights_changed().
  virtual std::vector<shard::Slice> weights() = 0;
  virtual void weights_changed() {}
  /// weights() for reading only, without waiting for communication that the last step has launched.
  virtual std::vector<shard::Slice> current_weights() { return weights(); }
  /// The weights, and the model's buffers: everything of the model that is saved, loaded and exported.
  std::vector<shard::Slice> state_dict();
  /// This rank's reduced slices of the gradients, between the backward pass and step(): the sum of all ranks'
  /// contributions to the global batch, before clipping. A plugin must therefore reduce at the end of the last backward
  /// pass (the one outside no_sync()) or here, not only in step(): `trireme verify` compares these gradients.
  /// Collective.
  virtual std::vector<shard::Slice> gradients() = 0;
  [[nodiscard]] virtual ModelReport report() const = 0;
  /// A chart of how this rank's pipeline group spent the last traced step (core/base/trace.h), as text of at most the
  /// given number of columns; "" when there is nothing to draw. Collective.
  virtual std::string chart(int /*columns*/) { return ""; }
  /// Calls `watch` with the outputs of each block that this rank runs in training, in the order of the calls; null ends
  /// it. Threads may call it at the same time. For reports on a failed step, which run that step again.
  virtual void watch_blocks(BlockWatch /*watch*/) {}
};

/// The result of an optimizer step, on the device: reading it waits for the step, which itself does not synchronise.
struct StepResult {
  at::Tensor grad_norm;  ///< before clipping, 0-dim
  at::Tensor found_inf;  ///< 0-dim; nonzero when the step was skipped, because a gradient was not finite
};

/// What this rank's optimizer holds, for the header of a run and its summary.
struct OptimizerReport {
  std::int64_t state_bytes = 0;       ///< of moments, and of masters that are copies
  std::int64_t host_state_bytes = 0;  ///< the part of state_bytes in host memory instead of device memory
  std::int64_t gradient_bytes = 0;    ///< of the gradients that this rank held at its last step
  std::string description{};          ///< the method with its options
};

/// An optimizer under a plugin.
class BoostedOptimizer {
 public:
  virtual ~BoostedOptimizer() = default;
  /// Runs the backward pass of loss_sum / global_weight, with the loss scale. `loss_sum`: of a microbatch, 0-dim.
  virtual void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) = 0;
  /// Unscales, checks that values are finite, computes the global norm, clips and updates; then the model's buffers are
  /// equal on the ranks that have copies of them. No host synchronisation. Collective.
  StepResult step(double lr);
  virtual void zero_grad() = 0;
  /// The state tensors with their placements, named as in checkpoints ("<parameter>.exp_avg"). They can be written to.
  virtual std::vector<shard::Slice> state() = 0;
  [[nodiscard]] virtual optim::LossScaler& scaler() = 0;
  [[nodiscard]] virtual OptimizerReport report() const = 0;
  /// The gradients of the next steps are clipped to this norm; 0: they are not. TrainOptions::max_norm is the first.
  void set_max_norm(double max_norm) { max_norm_ = max_norm; }
  [[nodiscard]] double max_norm() const { return max_norm_; }
  /// Set by the Booster.
  void set_buffer_sync(std::shared_ptr<BufferSync> sync) { buffer_sync_ = std::move(sync); }
  /// Set by the Booster: called once, at the end of the first step().
  void set_after_first_step(std::function<void()> call) { after_first_step_ = std::move(call); }

 protected:
  /// The part of step() that depends on how the plugin holds gradients and weights.
  virtual StepResult apply_gradients(double lr) = 0;

 private:
  std::shared_ptr<BufferSync> buffer_sync_;
  std::function<void()> after_first_step_;
  double max_norm_ = 0;
};

}  // namespace trireme
