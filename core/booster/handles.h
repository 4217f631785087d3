// What Booster::boost() gives back: the model and the optimizer as the chosen plugin runs them.
//
//   for each step:  for each microbatch but the last: { auto guard = model.no_sync(); forward, criterion, backward }
//                   the last: forward, criterion, backward          (here gradients are reduced, see gradients())
//                   optimizer.step(lr); optimizer.zero_grad();
#pragma once

#include <ATen/core/Tensor.h>

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

/// What runs the microbatches of a step by itself, in an order of its own: a pipeline.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// Forward and backward of all microbatches, and the reduction. Returns this rank's part of the loss over the global
  /// batch, 0-dim; zero on a rank that does not see the loss. `outputs`: if given, gets what the model makes of each
  /// microbatch, without graph, on the ranks that have it. Collective.
  virtual at::Tensor forward_backward(const data::StepBatch& batch, const Criterion& criterion,
                                      BoostedOptimizer& optimizer, std::vector<nn::Tensors>* outputs) = 0;
};

/// A model under a plugin.
class BoostedModel {
 public:
  virtual ~BoostedModel() = default;
  /// The forward pass of one microbatch, in the run's precision. Outputs keep their graph while training. A model with
  /// a runner() has this for evaluation alone: collective over its stages; the ranks of the last one get the outputs,
  /// all others none.
  virtual nn::Tensors forward(const data::Batch& batch) = 0;
  /// Set: it runs a step's microbatches. Null: the caller does, by forward() and the optimizer's backward().
  [[nodiscard]] virtual StepRunner* runner() { return nullptr; }
  /// While the guard lives, backward passes add to the local gradients and reduce nothing.
  virtual ScopeGuard no_sync() = 0;
  /// Whether a step reduces after each of its microbatches (and holds no full gradients) rather than once, at its end.
  [[nodiscard]] virtual bool reduces_each_microbatch() const { return false; }
  /// Training (dropout, graph, reduction) or evaluation.
  virtual void train(bool on) = 0;
  [[nodiscard]] virtual nn::Model& module() = 0;
  /// This rank's slices of the weights, in the precision in which they are updated: what checkpoints hold. After
  /// writing to them, all ranks call weights_changed().
  virtual std::vector<shard::Slice> weights() = 0;
  virtual void weights_changed() {}
  /// This rank's slices of the gradients between the backward pass and step(), reduced: the sum over the ranks of what
  /// each has computed of the global batch, before the clip. So a plugin reduces when the last backward pass ends, the
  /// one outside no_sync(), or here, and not first in step(): `trireme verify` compares them. Collective.
  virtual std::vector<shard::Slice> gradients() = 0;
  /// Bytes of weights that layers compute with, held by this rank; masters beside them belong to the optimizer.
  [[nodiscard]] virtual std::int64_t parameter_bytes() const = 0;
  /// The most bytes of other ranks' weights that this rank has held at once beside them; 0 where all weights stay.
  [[nodiscard]] virtual std::int64_t peak_gathered_bytes() const { return 0; }
  /// What a user should know of how this rank holds the model, for the header of a run: a line each.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
  /// How the ranks that this one works with spent the last step that was traced (core/base/trace.h), as text of at most
  /// so many columns; "" where there is nothing to draw. Collective.
  virtual std::string picture(int /*columns*/) { return ""; }
  /// What else may help where memory ran out in training: "lower plugin.NAME.KEY", ...
  [[nodiscard]] virtual std::vector<std::string> memory_advice() const { return {}; }
};

/// What an optimizer step says of itself, on the device: reading it waits, the step did not.
struct StepResult {
  at::Tensor grad_norm;  ///< before the clip, 0-dim
  at::Tensor found_inf;  ///< undefined without a loss scale; else not 0 when the step was skipped
};

/// An optimizer under a plugin.
class BoostedOptimizer {
 public:
  virtual ~BoostedOptimizer() = default;
  /// Backward pass of loss.sum / global_weight, with the loss scale.
  virtual void backward(const nn::Loss& loss, double global_weight) = 0;
  /// Unscale, finite check, global norm, clip, update. No host synchronisation.
  virtual StepResult step(double lr) = 0;
  virtual void zero_grad() = 0;
  /// State tensors with their placements, as checkpoints name them ("<parameter>.exp_avg"). Writing one sets it.
  virtual std::vector<shard::Slice> state() = 0;
  [[nodiscard]] virtual optim::LossScaler& scaler() = 0;
  [[nodiscard]] virtual std::int64_t state_bytes() const = 0;
  /// Of those, bytes in host memory beside the device.
  [[nodiscard]] virtual std::int64_t host_state_bytes() const { return 0; }
  /// Bytes of the gradients that this rank held when it stepped last.
  [[nodiscard]] virtual std::int64_t gradient_bytes() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace trireme
