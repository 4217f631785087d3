#include "core/accelerate/accelerator.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstdio>

#include "core/accelerate/accelerate_state.h"
#include "core/base/error.h"
#include "core/booster/booster.h"
#include "core/booster/torch_optimizer.h"
#include "core/comm/first_on_host.h"
#include "core/comm/host_values.h"

namespace trireme {
namespace {

std::shared_ptr<AcceleratorState> make_state(std::unique_ptr<comm::World> own, comm::World& world,
                                             AcceleratorOptions options) {
  if (options.gradient_accumulation_steps < 1)
    throw ConfigError(fmt::format(
        "AcceleratorOptions::gradient_accumulation_steps = {}: it must be at least 1; 1 accumulates nothing",
        options.gradient_accumulation_steps));
  return std::make_shared<AcceleratorState>(std::move(own), world, std::move(options));
}

std::shared_ptr<AcceleratorState> start(AcceleratorOptions options) {
  auto world = launch(options.world);
  auto& started = *world;
  return make_state(std::move(world), started, std::move(options));
}

BoostOptions boost_options(const AcceleratorOptions& options, optim::OptimizerOptions optimizer) {
  BoostOptions out;
  out.train.precision = options.mixed_precision;
  out.train.loss_scale = options.loss_scale;
  out.optimizer = std::move(optimizer);
  out.loading.shard_data = options.shard_data;
  out.loading.dispatch = options.dispatch_batches;
  out.seed = options.seed;
  return out;
}

/// Makes the model and the optimizer of the run.
void boost(AcceleratorState& state, ModelSource source, optim::OptimizerOptions optimizer) {
  const auto& options = state.options;
  auto plugin = load_plugin(options.plugin, options.plugin_options);
  for (const auto& axis : plugin->axes(state.world.size()))
    if (axis.kind.name == "pp" && axis.size > 1)
      throw ConfigError(
          fmt::format("Accelerator: {} pipeline stages run different parts of the model, so a loop with a forward pass "
                      "of its own cannot train it; set pp_size = 1, or use Boosted::execute_pipeline() or a Trainer",
                      axis.size));
  state.base_lr = optimizer.lr;
  state.booster = std::make_unique<Booster>(state.world, std::move(plugin),
                                            boost_options(options, std::move(optimizer)), &state.log);
  state.run = state.booster->boost(std::move(source));
}

/// The number of steps for which the schedule's curve is made.
std::int64_t total_steps(const AcceleratorState& state, const LrSchedulerOptions& wanted) {
  TRIREME_REQUIRE(wanted.epochs.has_value() != wanted.total_steps.has_value(),
                  "Accelerator::prepare(): a schedule needs its length: set one of epochs and total_steps");
  if (wanted.total_steps) return *wanted.total_steps;
  TRIREME_REQUIRE(!state.loaders.empty(),
                  "Accelerator::prepare(): a schedule with epochs needs a loader, whose steps they are; prepare one "
                  "with it or before, or set total_steps");
  const auto each = state.options.gradient_accumulation_steps;
  return *wanted.epochs * ((state.loaders.front()->loader->steps_per_epoch() + each - 1) / each);
}

/// The sizes of each rank's values. @throws UsageError when they differ in another dim than the first
std::vector<std::vector<std::int64_t>> sizes_of_ranks(const comm::Group& ranks, const at::Tensor& values) {
  auto sizes = comm::all_gather_values(ranks, values.sizes().vec());
  for (std::size_t r = 0; r < sizes.size(); ++r)
    TRIREME_REQUIRE(std::equal(sizes[r].begin() + 1, sizes[r].end(), sizes[0].begin() + 1),
                    "Accelerator::gather(): ranks 0 and {} have values of different sizes in another dim than the "
                    "first; pad them to one size, by an all-reduce of the largest",
                    r);
  return sizes;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : state_(start(std::move(options))) {}

Accelerator::Accelerator(comm::World& world, AcceleratorOptions options)
    : state_(make_state(nullptr, world, std::move(options))) {}

std::vector<PreparedLoader> Accelerator::prepare_all(detail::ToPrepare wanted) {
  auto& state = *state_;
  const bool optimizer = wanted.optimizer || wanted.torch_optimizer != nullptr;
  TRIREME_REQUIRE(wanted.model.has_value() == optimizer,
                  "Accelerator::prepare() got {} without {}; a plugin wraps both at once, so pass them in one call",
                  optimizer ? "an optimizer" : "a model", optimizer ? "its model" : "its optimizer");
  if (wanted.model) {
    TRIREME_REQUIRE(state.run.model == nullptr,
                    "Accelerator::prepare(): a model is prepared already; an accelerator has one at a time, see "
                    "free_memory()");
    TRIREME_REQUIRE(wanted.model->model != nullptr, "Accelerator::prepare(): the model is null");
    if (wanted.torch_optimizer != nullptr)
      wanted.optimizer = optimizer_options(*wanted.torch_optimizer, nn::declarations(*wanted.model->model));
    boost(state, std::move(*wanted.model), std::move(*wanted.optimizer));
  }
  TRIREME_REQUIRE(state.run.model != nullptr,
                  "Accelerator::prepare(): prepare the model and the optimizer first, or in the same call; they decide "
                  "which ranks read the same samples");
  std::vector<PreparedLoader> loaders;
  for (const auto& loader : wanted.loaders) {
    state.loaders.push_back(std::make_shared<LoaderState>(state, loader));
    loaders.push_back(PreparedLoader(state.loaders.back()));
  }
  if (wanted.scheduler) {
    once(state.schedule == nullptr, "schedule");
    state.schedule = std::make_unique<optim::LrSchedule>(wanted.scheduler->schedule, state.base_lr,
                                                         total_steps(state, *wanted.scheduler));
  }
  return loaders;
}

void Accelerator::once(bool first, const char* kind) {
  TRIREME_REQUIRE(first, "Accelerator::prepare() got a second {}; an accelerator has one", kind);
}

void Accelerator::backward(const at::Tensor& loss) {
  auto& run = state_->prepared();
  TRIREME_REQUIRE(loss.dim() == 0, "Accelerator::backward(): the loss has {} dimensions; pass its mean over the batch",
                  loss.dim());
  state_->drop_unfinished();
  const auto* active = state_->active();
  const auto samples = active != nullptr ? active->local_samples : 1;
  const auto weight = active != nullptr ? active->weight : state_->data_group().size();
  run.optimizer->backward(loss * samples, at::scalar_tensor(static_cast<double>(weight), at::kDouble));
  state_->accumulating = state_->syncs() ? nullptr : active;
}

void Accelerator::clip_grad_norm(const PreparedModel& /*model*/, double max_norm) {
  TRIREME_REQUIRE(max_norm > 0, "Accelerator::clip_grad_norm(): the norm {} is not positive", max_norm);
  state_->clip = max_norm;
}

ScopeGuard Accelerator::accumulate(const PreparedModel& model) {
  auto* active = state_->active();
  TRIREME_REQUIRE(active != nullptr,
                  "Accelerator::accumulate() outside the loop over a prepared loader; use no_sync() for batches of "
                  "your own");
  return active->accumulate() ? ScopeGuard({}) : no_sync(model);
}

ScopeGuard Accelerator::no_sync(const PreparedModel& /*model*/) {
  auto& run = state_->prepared();
  // Such a plugin holds no whole gradients between backward passes.
  return run.model->reduces_each_microbatch() ? ScopeGuard({}) : run.model->no_sync();
}

bool Accelerator::sync_gradients() const { return state_->syncs(); }

at::Tensor Accelerator::gather(const at::Tensor& values) {
  (void)state_->prepared();
  auto mine = values.detach();
  if (mine.dim() == 0) mine = mine.unsqueeze(0);
  const auto& ranks = state_->data_group();
  if (ranks.size() == 1) return mine;
  const auto at_home = mine.device();
  mine = mine.to(device()).contiguous();
  std::vector<at::Tensor> parts;
  for (const auto& sizes : sizes_of_ranks(ranks, mine)) parts.push_back(at::empty(sizes, mine.options()));
  ranks.all_gather(parts, mine);
  return at::cat(parts).to(at_home);
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& values) {
  const auto* active = state_->active();
  TRIREME_REQUIRE(active != nullptr,
                  "Accelerator::gather_for_metrics() outside the loop over a prepared loader, whose batch says which "
                  "values are samples; call gather()");
  TRIREME_REQUIRE(values.dim() > 0 && values.size(0) == active->batch.size(),
                  "Accelerator::gather_for_metrics(): dim 0 of the values is {}, but the batch has {} samples; it "
                  "gathers one row for each sample, and reduce() sums other values",
                  values.dim() > 0 ? values.size(0) : 0, active->batch.size());
  return gather(values.narrow(0, 0, active->local_samples));
}

at::Tensor Accelerator::reduce(const at::Tensor& values, comm::ReduceOp op) {
  (void)state_->prepared();
  auto all = values.detach().to(device()).clone();
  state_->data_group().all_reduce(all, op);
  return all.to(values.device());
}

void Accelerator::print_line(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

int Accelerator::num_processes() const { return state_->world.size(); }
int Accelerator::process_index() const { return state_->world.rank(); }
int Accelerator::local_process_index() const { return state_->world.info().local_rank; }
c10::Device Accelerator::device() const { return state_->world.device(); }
comm::World& Accelerator::world() const { return state_->world; }
std::int64_t Accelerator::gradient_accumulation_steps() const { return state_->options.gradient_accumulation_steps; }
void Accelerator::wait_for_everyone() const { state_->world.group().barrier(); }
void Accelerator::main_process_first(const std::function<void()>& body) const {
  comm::first_on_rank_0(state_->world, body, "Accelerator::main_process_first");
}
void Accelerator::local_main_process_first(const std::function<void()>& body) const {
  comm::first_on_host(state_->world, body, "Accelerator::local_main_process_first");
}
void Accelerator::free_memory() { state_->release(); }

}  // namespace trireme
