// What Accelerator::prepare() returns: handles to the model, the optimizer, the schedule and the loaders of a run. They
// are used like their PyTorch counterparts, and copies of a handle are the same object.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

#include "core/data/batch.h"
#include "core/nn/context.h"

namespace trireme::nn {
class Model;
}

namespace trireme {

struct AcceleratorState;
struct LoaderLoop;
struct LoaderState;

class PreparedModel {
 public:
  /// The outputs for a batch of a prepared loader. In training mode they have a graph, for Accelerator::backward().
  nn::Tensors forward(const data::Batch& batch);
  /// The same for a model with one output.
  at::Tensor operator()(const data::Batch& batch);
  /// The same for a model with one input, such as one that the program has changed. Dim 0 has the samples of the
  /// current batch.
  at::Tensor operator()(const at::Tensor& input);
  /// Selects training (dropout, gradients) or evaluation. A new model trains.
  void train(bool on = true);
  void eval() { train(false); }
  /// The model that the plugin runs. Under ZeRO stage 3 its parameters have memory only while they are used.
  [[nodiscard]] nn::Model& module() const;

 private:
  friend class Accelerator;
  explicit PreparedModel(std::shared_ptr<AcceleratorState> state) : state_(std::move(state)) {}
  std::shared_ptr<AcceleratorState> state_;
};

class PreparedOptimizer {
 public:
  /// Unscales the gradients, clips them if Accelerator::clip_grad_norm() was called for this step, and updates. Does
  /// nothing while gradients are accumulated (Accelerator::accumulate()). Collective.
  /// @throws UsageError with gradient_accumulation_steps > 1, unless accumulate() was called for the batch
  void step();
  /// Forgets the gradients. Does nothing while gradients are accumulated.
  void zero_grad();
  /// Whether the last step changed nothing because a gradient was not finite, as at times with fp16. Waits for the
  /// device.
  [[nodiscard]] bool step_was_skipped() const;
  /// The norm of all gradients in the last step, before clipping: 0-dim, on the device; undefined before the first one.
  [[nodiscard]] at::Tensor grad_norm() const;
  /// The learning rate of the next step.
  [[nodiscard]] double lr() const;
  /// Steps taken since the start of training, those before a load_state() included.
  [[nodiscard]] std::int64_t steps() const;

 private:
  friend class Accelerator;
  explicit PreparedOptimizer(std::shared_ptr<AcceleratorState> state) : state_(std::move(state)) {}
  std::shared_ptr<AcceleratorState> state_;
};

class PreparedScheduler {
 public:
  /// Goes on to the next learning rate, after optimizer.step(), also when that was skipped. Does nothing while
  /// gradients are accumulated.
  void step();
  /// The learning rate of the next step.
  [[nodiscard]] double lr() const;

 private:
  friend class Accelerator;
  explicit PreparedScheduler(std::shared_ptr<AcceleratorState> state) : state_(std::move(state)) {}
  std::shared_ptr<AcceleratorState> state_;
};

/// This rank's part of each global batch, on the device: for (const auto& batch : loader). Each such loop is one epoch,
/// with an order of its own if the loader shuffles; after load_state() the first loop continues in the middle. A loop
/// that the program leaves ends its epoch, and an accumulation in it.
///
/// When a global batch has fewer samples than there are ranks, a rank without one gets a batch with one sample of ones,
/// so that it runs the same code as the others. Accelerator::backward() gives it no weight, and gather_for_metrics()
/// leaves it out.
class PreparedLoader {
 public:
  /// @throws what data::Loader::next() throws
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = data::Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = const data::Batch*;
    using reference = const data::Batch&;
    reference operator*() const;
    pointer operator->() const { return &**this; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return loop_ == nullptr; }

   private:
    friend class PreparedLoader;
    explicit Iterator(std::shared_ptr<LoaderLoop> loop) : loop_(std::move(loop)) {}
    std::shared_ptr<LoaderLoop> loop_;  ///< null at the end of the epoch
  };

  /// Starts an epoch. All ranks must do it.
  Iterator begin();
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }
  /// Batches in an epoch, the same on every rank.
  [[nodiscard]] std::int64_t size() const;
  /// Samples of the data set.
  [[nodiscard]] std::int64_t samples() const;
  /// Samples of this rank in the current batch: 0 when it has one that stands in for none, or outside a loop.
  [[nodiscard]] std::int64_t local_samples() const;
  /// Samples of a full batch over all ranks.
  [[nodiscard]] std::int64_t total_batch_size() const;
  /// The epoch that runs now, or that the next loop runs; it counts from 0.
  [[nodiscard]] std::int64_t epoch() const;
  /// Selects the epoch of the next loop, and ends the one that runs. Loops count epochs themselves, so most programs
  /// need not call it.
  void set_epoch(std::int64_t epoch);

 private:
  friend class Accelerator;
  explicit PreparedLoader(std::shared_ptr<LoaderState> loader) : loader_(std::move(loader)) {}
  std::shared_ptr<LoaderState> loader_;
};

}  // namespace trireme
