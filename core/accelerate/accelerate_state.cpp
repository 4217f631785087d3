#include "core/accelerate/accelerate_state.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/sums_over_ranks.h"

namespace trireme {
namespace {

/// One sample in place of none. Ones are valid labels, token ids and mask values.
data::Batch stand_in(data::Batch batch) {
  for (auto* tensors : {&batch.inputs, &batch.targets})
    for (auto& [name, tensor] : *tensors) {
      auto sizes = tensor.sizes().vec();
      sizes[0] = 1;
      tensor = at::ones(sizes, tensor.options());
    }
  batch.sample_ids = at::zeros({1}, at::kLong);
  return batch;
}

/// A stand-in would be one of the samples whose mean and variance a synchronised layer takes.
void check_norms(nn::Model& model, const data::Loader& loader) {
  const auto& options = loader.options();
  const auto last = options.drop_last ? 0 : loader.size() % options.global_batch;
  if (last == 0 || last >= options.dp_size) return;
  model.apply([&](torch::nn::Module& module) {
    if (nn::summing_layer(module) != nullptr)
      throw ConfigError(
          fmt::format("Accelerator::prepare(): the last batch of a loader has {} samples for {} data-parallel ranks, "
                      "but the model's synchronised batch normalisation needs one on each of them; set drop_last = "
                      "true, or another batch size (that of all ranks together is {}, the data set has {} samples)",
                      last, options.dp_size, options.global_batch, loader.size()));
  });
}

}  // namespace

LoaderLoop::LoaderLoop(std::shared_ptr<LoaderState> over) : loader(std::move(over)) { loader->start(*this); }

LoaderLoop::~LoaderLoop() {
  if (loader->loop == this) loader->end();
}

bool LoaderLoop::advance() { return loader->loop == this && loader->advance(); }

LoaderState::LoaderState(AcceleratorState& state, const DataLoaderOptions& wanted)
    : accelerator(&state), steps_of_accumulation(state.options.gradient_accumulation_steps) {
  TRIREME_REQUIRE(wanted.dataset != nullptr && wanted.batch_size > 0,
                  "Accelerator::prepare(): a loader needs a data set and a batch size of at least 1 (it is {})",
                  wanted.batch_size);
  data::check_rows(*wanted.dataset, state.booster->options().loading);
  auto options = state.run.loader_options();
  options.global_batch = wanted.batch_size * (state.options.split_batches ? 1 : options.dp_size);
  if (options.global_batch < options.dp_size)
    throw ConfigError(
        fmt::format("Accelerator::prepare(): split_batches divides a batch of {} over {} data-parallel ranks; use a "
                    "batch size of at least {}",
                    wanted.batch_size, options.dp_size, options.dp_size));
  options.micro_batch = (options.global_batch + options.dp_size - 1) / options.dp_size;
  options.shuffle = wanted.shuffle;
  options.augment = wanted.augment.value_or(wanted.shuffle);
  options.drop_last = wanted.drop_last;
  options.evaluation = !options.shuffle && !options.augment && !options.drop_last;
  if (wanted.workers) options.workers = *wanted.workers;
  options.prefetch = wanted.prefetch;
  loader = std::make_unique<data::Loader>(wanted.dataset, options);
  check_norms(state.run.model->module(), *loader);
}

data::Loader& LoaderState::prepared() const {
  TRIREME_REQUIRE(loader != nullptr, "this loader was prepared before Accelerator::free_memory()");
  return *loader;
}

void LoaderState::start(const LoaderLoop& by) {
  (void)prepared();
  end();
  accelerator->drop_unfinished();
  loader->start_epoch(at.epoch, at.batch);
  loop = &by;
}

void LoaderState::end() {
  if (loop != nullptr) set_position({.epoch = at.epoch + 1, .batch = 0});
}

void LoaderState::set_position(Position next) {
  loop = nullptr;
  if (accelerator != nullptr) std::erase(accelerator->running, this);
  stepped = at = next;
  batch = {};
  local_samples = 0;
}

bool LoaderState::advance() {
  auto& open = accelerator->running;
  std::erase(open, this);
  auto step = loader->next();
  if (!step) {
    end();
    return false;
  }
  TRIREME_CHECK(step->micro.size() == 1, "a prepared loader made {} microbatches", step->micro.size());
  open.push_back(this);
  batch = std::move(step->micro.front());
  local_samples = step->local_samples;
  // Dropout masks differ between optimizer steps, as in a run whose batches are not accumulated but large.
  const auto groups = (loader->steps_per_epoch() + steps_of_accumulation - 1) / steps_of_accumulation;
  batch.step = at.epoch * groups + at.batch / steps_of_accumulation;
  if (local_samples == 0) batch = stand_in(std::move(batch));
  batch.global_weight = at::Tensor();  // not that of an accumulation; Accelerator::backward() has it
  asked = false;
  sync = true;
  weight = samples_of(at.batch, at.batch + 1);
  ++at.batch;
  return true;
}

std::int64_t LoaderState::samples_of(std::int64_t begin, std::int64_t end) const {
  const auto global_batch = loader->options().global_batch;
  return std::min(end * global_batch, loader->size()) - begin * global_batch;
}

bool LoaderState::accumulate() {
  const auto begin = (at.batch - 1) / steps_of_accumulation * steps_of_accumulation;
  const auto end = std::min(begin + steps_of_accumulation, loader->steps_per_epoch());
  weight = samples_of(begin, end);
  asked = true;
  sync = at.batch == end;
  return sync;
}

AcceleratorState::AcceleratorState(std::unique_ptr<comm::World> own, comm::World& on, AcceleratorOptions given)
    : own_world(std::move(own)),
      world(on),
      options(std::move(given)),
      log(options.log != nullptr ? *options.log : Log(world.rank())) {}

AcceleratorState::~AcceleratorState() { release(); }

ModelAndOptimizer& AcceleratorState::prepared() {
  TRIREME_REQUIRE(run.model != nullptr,
                  "nothing is prepared (any more): call Accelerator::prepare() with the model and the optimizer");
  return run;
}

void AcceleratorState::drop_unfinished() {
  if (!accumulates() && std::exchange(accumulating, nullptr) != nullptr) run.optimizer->zero_grad();
}

void AcceleratorState::release() {
  running.clear();
  for (auto& loader : loaders) {
    loader->loop = nullptr;
    loader->loader.reset();
    loader->accelerator = nullptr;
  }
  loaders.clear();
  schedule.reset();
  run.optimizer.reset();  // it refers to the model
  run = {};
  booster.reset();
  schedule_step = 0;
  clip.reset();
  last_step = {};
  accumulating = nullptr;
}

}  // namespace trireme
