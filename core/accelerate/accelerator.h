// Accelerator: a training loop of one's own that runs unchanged on one process and on many, under any plugin.
//
//   Accelerator accelerator(world, {.plugin = "low_level_zero", .mixed_precision = "bf16"});
//   auto [model, optimizer, train, test, scheduler] = accelerator.prepare(
//       net, torch::optim::AdamW(net->parameters(), 1e-3), DataLoaderOptions{.dataset = train_set, .batch_size = 64,
//       .shuffle = true}, DataLoaderOptions{.dataset = test_set, .batch_size = 500}, LrSchedulerOptions{...});
//   for (auto epoch = train.epoch(); epoch < 3; ++epoch)
//     for (const auto& batch : train) {
//       const auto guard = accelerator.accumulate(model);
//       const auto loss = at::cross_entropy_loss(model(batch), batch.targets["labels"]);  // the mean over this batch
//       accelerator.backward(loss);
//       accelerator.clip_grad_norm(model, 1.0);
//       optimizer.step();
//       scheduler.step();
//       optimizer.zero_grad();
//     }
//
// The gradients are those of the mean over the samples of all ranks and of all batches that are accumulated to a step,
// also where these have different sizes. With split_batches the result does not depend on the number of ranks.
// The handles and the accelerator share their state; a world of the program's must outlive all of them.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/accelerate/accelerate_inputs.h"
#include "core/accelerate/handles.h"
#include "core/base/log.h"
#include "core/booster/boosted.h"
#include "core/booster/plugin_loader.h"
#include "core/comm/world.h"

namespace trireme {

struct AcceleratorOptions {
  std::string plugin = "torch_ddp";  ///< name or path
  PluginOptions plugin_options{};
  std::string mixed_precision = "fp32";  ///< fp32 | tf32 | bf16 | fp16 | fp64
  optim::LossScaleOptions loss_scale{};  ///< of fp16
  std::int64_t gradient_accumulation_steps = 1;
  std::uint64_t seed = 42;        ///< of weights drawn by name, sample order, augmentation and dropout
  bool split_batches = false;     ///< true: a loader's batch size is that of all ranks together, not of one
  bool dispatch_batches = false;  ///< rank 0 reads all samples and sends each rank its part
  bool shard_data = false;        ///< each sample is read by one rank, so the set is in memory once over all ranks
  comm::WorldOptions world{};     ///< for an accelerator that starts the world itself
  const Log* log = nullptr;       ///< null: messages go to standard error
};

namespace detail {

/// What one prepare() call got, sorted by kind.
struct ToPrepare {
  std::optional<ModelSource> model;
  std::optional<optim::OptimizerOptions> optimizer;
  torch::optim::Optimizer* torch_optimizer = nullptr;
  std::vector<DataLoaderOptions> loaders;
  std::optional<LrSchedulerOptions> scheduler;
};

enum class Kind { model, optimizer, loader, scheduler, unknown };
template <class T>
constexpr Kind kind_of() {
  if constexpr (std::same_as<T, DataLoaderOptions>)
    return Kind::loader;
  else if constexpr (std::same_as<T, LrSchedulerOptions>)
    return Kind::scheduler;
  else if constexpr (std::same_as<T, optim::OptimizerOptions> || std::derived_from<T, torch::optim::Optimizer>)
    return Kind::optimizer;
  else if constexpr (requires(T & object) { model_source(std::move(object)); })
    return Kind::model;
  else
    return Kind::unknown;
}

}  // namespace detail

class Accelerator {
 public:
  /// Detects how this process was started and starts its world. An exception on one rank then leaves the others
  /// waiting; run_program() ends them, and gives the world for the other constructor. Collective.
  explicit Accelerator(AcceleratorOptions options = {});
  /// @throws ConfigError for invalid options, or a plugin that cannot be loaded
  Accelerator(comm::World& world, AcceleratorOptions options = {});

  /// Prepares, in any order and number, and returns the handles in the same order:
  ///   a model      a torch::nn ModuleHolder, a std::shared_ptr to a module or an nn::Model, a ModelSource
  ///   an optimizer optim::OptimizerOptions, or torch::optim::AdamW, Adam or SGD, whose options and groups are read
  ///   loaders      DataLoaderOptions
  ///   a schedule   LrSchedulerOptions
  /// Model and optimizer come together, in the first call. Collective.
  /// @throws ConfigError, DataError, CheckpointError, UsageError
  template <class... Objects>
  auto prepare(Objects&&... objects) {
    detail::ToPrepare wanted;
    (sort(wanted, objects), ...);
    auto loaders = prepare_all(std::move(wanted));
    std::size_t next = 0;
    return std::tuple{handle<std::remove_cvref_t<Objects>>(loaders, next)...};  // braces: from left to right
  }

  /// The backward pass of `loss`, the mean over the samples of the current batch, 0-dim. Outside a prepared loader's
  /// loop the ranks' losses have equal weights.
  void backward(const at::Tensor& loss);
  /// Clips the norm of all gradients in the next optimizer.step(), which is the first to know it.
  void clip_grad_norm(const PreparedModel& model, double max_norm);
  /// While the guard exists, forward and backward passes add to the gradients of the batches before. In the last of
  /// gradient_accumulation_steps batches and in the last batch of an epoch, gradients are reduced and optimizer and
  /// scheduler make a step; in the others these do nothing. Call it first for each batch, which with
  /// gradient_accumulation_steps = 1 is not needed.
  ScopeGuard accumulate(const PreparedModel& model);
  /// While the guard exists, backward passes reduce no gradients. Each adds the mean over its own batch.
  ScopeGuard no_sync(const PreparedModel& model);
  /// Whether optimizer.step() makes a step for the current batch.
  [[nodiscard]] bool sync_gradients() const;

  /// The values of all data-parallel ranks along dim 0, by rank, on every rank; a 0-dim value counts as one element.
  /// Sizes may differ in dim 0. Without graph. Collective.
  [[nodiscard]] at::Tensor gather(const at::Tensor& values);
  /// The same for values of the current batch's samples, along dim 0: each sample once, in the order of the global
  /// batch, which without shuffling is that of the data set. Collective.
  [[nodiscard]] at::Tensor gather_for_metrics(const at::Tensor& values);
  template <std::same_as<at::Tensor>... Values>
  requires(sizeof...(Values) > 1) [[nodiscard]] auto gather_for_metrics(const Values&... values) {
    return std::tuple{gather_for_metrics(values)...};
  }
  /// The sum, or another reduction, over the data-parallel ranks, on every rank. Without graph. Collective.
  [[nodiscard]] at::Tensor reduce(const at::Tensor& values, comm::ReduceOp op = comm::ReduceOp::sum);

  /// Prints a line to standard output on rank 0.
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    if (is_main_process()) print_line(fmt::format(format, std::forward<Arguments>(arguments)...));
  }
  [[nodiscard]] int num_processes() const;
  [[nodiscard]] int process_index() const;
  [[nodiscard]] int local_process_index() const;
  [[nodiscard]] bool is_main_process() const { return process_index() == 0; }
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0; }
  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] comm::World& world() const;
  [[nodiscard]] std::int64_t gradient_accumulation_steps() const;
  /// Collective.
  void wait_for_everyone() const;
  /// Calls body() on rank 0, then on the others, which find what it has made. Collective; body() must not be.
  void main_process_first(const std::function<void()>& body) const;
  /// The same with the first rank of each host.
  void local_main_process_first(const std::function<void()>& body) const;

  /// Writes a checkpoint with everything that a run needs to continue as if it had not stopped, as
  /// DIR/checkpoints/step-N: weights, optimizer, loss scale, schedule, and the position in each loader after the last
  /// optimizer step (batches that are accumulated since then are read again). Keeps the newest `keep`. Collective.
  /// @throws CheckpointError; UsageError while batches are accumulated, for a model with buffers, which they have
  /// already changed
  void save_state(const std::string& dir, std::int64_t keep = 2);
  /// Loads the newest checkpoint of DIR, saved under any plugin, into what has just been prepared in the same order.
  /// False if there is none. The loaders' next loops continue in the middle of their epochs. Collective.
  /// @throws CheckpointError when the checkpoint has another model, optimizer, seed or other loaders
  bool load_state(const std::string& dir);
  /// Writes the weights as DIR/model.safetensors in Hugging Face's layout. Collective. @throws CheckpointError
  void save_model(const PreparedModel& model, const std::string& dir);
  /// The model without the plugin around it; a program's own module is the object that it passed to prepare().
  [[nodiscard]] nn::Model& unwrap(const PreparedModel& model) const { return model.module(); }
  /// Frees what prepare() has made; its handles must not be used any more. Another model can then be prepared.
  void free_memory();

 private:
  template <class T>
  static void sort(detail::ToPrepare& wanted, T& object);
  /// Returns the loaders in their order.
  std::vector<PreparedLoader> prepare_all(detail::ToPrepare wanted);
  template <class T>
  auto handle(const std::vector<PreparedLoader>& loaders, std::size_t& next) const;
  static void once(bool first, const char* kind);
  static void print_line(const std::string& text);
  std::shared_ptr<AcceleratorState> state_;
};

template <class T>
void Accelerator::sort(detail::ToPrepare& wanted, T& object) {
  using Plain = std::remove_cv_t<T>;
  constexpr auto kind = detail::kind_of<Plain>();
  static_assert(!std::derived_from<Plain, torch::optim::LRScheduler>,
                "prepare() cannot read the options of torch's LR schedulers; pass LrSchedulerOptions with a curve of "
                "core/optim/lr_schedule.h: step_drops() is StepLR, cosine() is CosineAnnealingLR");
  static_assert(
      kind != detail::Kind::unknown,
      "prepare() takes a model (ModuleHolder, shared_ptr to a module, ModelSource), an optimizer "
      "(optim::OptimizerOptions, torch::optim::AdamW, Adam, SGD), DataLoaderOptions and LrSchedulerOptions; a "
      "module of another form becomes a model by nn::adapt(module, forward)");
  if constexpr (kind == detail::Kind::loader) {
    wanted.loaders.push_back(object);
  } else if constexpr (kind == detail::Kind::scheduler) {
    once(!wanted.scheduler, "schedule");
    wanted.scheduler = object;
  } else if constexpr (kind == detail::Kind::optimizer) {
    once(!wanted.optimizer && wanted.torch_optimizer == nullptr, "optimizer");
    if constexpr (std::same_as<Plain, optim::OptimizerOptions>)
      wanted.optimizer = object;
    else
      wanted.torch_optimizer = &object;
  } else {
    once(!wanted.model, "model");
    if constexpr (std::copy_constructible<Plain>)
      wanted.model = model_source(object);
    else
      wanted.model = model_source(std::move(object));
  }
}

template <class T>
auto Accelerator::handle(const std::vector<PreparedLoader>& loaders, std::size_t& next) const {
  constexpr auto kind = detail::kind_of<T>();
  if constexpr (kind == detail::Kind::loader)
    return loaders[next++];
  else if constexpr (kind == detail::Kind::scheduler)
    return PreparedScheduler(state_);
  else if constexpr (kind == detail::Kind::optimizer)
    return PreparedOptimizer(state_);
  else
    return PreparedModel(state_);
}

}  // namespace trireme
