#include "core/booster/accelerate_state.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

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

}  // namespace

LoaderState::LoaderState(AcceleratorState& state, const DataLoaderOptions& wanted)
    : accelerator(&state), steps_of_accumulation(state.options.gradient_accumulation_steps) {
  TRIREME_REQUIRE(wanted.dataset != nullptr && wanted.batch_size > 0,
                  "Accelerator::prepare(): a loader needs a data set and a batch size of at least 1 (it is {})",
                  wanted.batch_size);
  data::check_rows(*wanted.dataset, state.booster->options().loading);
  auto options = state.booster->loader_options();
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
}

data::Loader& LoaderState::prepared() const {
  TRIREME_REQUIRE(loader != nullptr, "this loader was prepared before Accelerator::free_memory()");
  return *loader;
}

void LoaderState::start() {
  (void)prepared();
  if (running) {  // the program left the last loop before its end
    at = {.epoch = at.epoch + 1, .batch = 0};
    accelerator->drop_accumulated();
  }
  running = true;
  loader->start_epoch(at.epoch, at.batch);
}

bool LoaderState::advance() {
  auto& open = accelerator->running;
  // Loops inside this one that the program has left end here.
  open.erase(std::find(open.begin(), open.end(), this), open.end());
  auto step = loader->next();
  if (!step) {
    running = false;
    stepped = at = {.epoch = at.epoch + 1, .batch = 0};
    batch = {};
    local_samples = 0;
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
  sync = at.batch == end;
  return sync;
}

AcceleratorState::AcceleratorState(std::unique_ptr<comm::World> own, comm::World& on, AcceleratorOptions given)
    : own_world(std::move(own)),
      world(on),
      options(std::move(given)),
      log(options.log != nullptr ? *options.log : Log(world.rank())) {}

AcceleratorState::~AcceleratorState() { release(); }

Boosted& AcceleratorState::prepared() {
  TRIREME_REQUIRE(run.model != nullptr,
                  "nothing is prepared (any more): call Accelerator::prepare() with the model and the optimizer");
  return run;
}

void AcceleratorState::drop_accumulated() {
  if (std::exchange(accumulated, false)) run.optimizer->zero_grad();
}

void AcceleratorState::release() {
  running.clear();
  for (auto& loader : loaders) {
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
  accumulated = false;
}

}  // namespace trireme
