#include "core/booster/booster.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/booster/buffers.h"
#include "core/booster/precision.h"
#include "core/booster/torch_optimizer.h"
#include "core/comm/host_values.h"
#include "core/config/table.h"
#include "core/nn/block.h"
#include "core/nn/sums_over_ranks.h"

namespace trireme {
namespace {

/// The ranks that need the same samples: they differ only along other axes than those that divide the samples.
const comm::Group& ranks_with_same_samples(comm::Mesh& mesh) {
  const auto dividing = mesh.axes(&comm::AxisKind::splits_samples);
  std::vector<std::string> others;
  for (const auto& axis : mesh.axes())
    if (std::find(dividing.begin(), dividing.end(), axis) == dividing.end()) others.push_back(axis);
  return mesh.group(others);
}

/// Which ranks read samples for each other, by the options of [data]. Null when each rank reads the samples that it
/// needs. `reads_inputs`: this rank needs the model's inputs. Collective.
std::shared_ptr<const data::SampleExchange> make_sample_exchange(const data::LoadingOptions& loading, comm::Mesh& mesh,
                                                                 bool reads_inputs) {
  const auto make = [&](const comm::Group& ranks, data::Reader reader) {
    const auto dp_rank = mesh.group(&comm::AxisKind::splits_samples).rank();
    return ranks.size() == 1 ? nullptr
                             : std::make_shared<const data::SampleExchange>(ranks, reader, dp_rank, reads_inputs);
  };
  if (loading.dispatch) return make(mesh.world().group(), data::Reader::first_rank);
  if (loading.shard_data) return make(mesh.world().group(), data::Reader::by_index);
  // Ranks that need the same samples must agree on which ones are skipped, so one of them reads.
  if (loading.on_bad_sample == "skip") return make(ranks_with_same_samples(mesh), data::Reader::first_rank);
  return nullptr;
}

/// Sums the task's weight over the microbatches of all ranks. Where nothing counts, the weight is 1.
void weigh(const Task& task, const comm::Group& ranks, data::StepBatch& step) {
  at::Tensor sum;
  for (const auto& micro : step.micro) {
    const auto weight = task.weight(micro);
    if (!weight.defined()) return;  // the loader divides by the number of samples
    sum = sum.defined() ? sum + weight : weight.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  ranks.all_reduce(sum);
  sum = sum.where(sum.ne(0), at::ones_like(sum));
  for (auto& micro : step.micro) micro.global_weight = sum;
}

/// A rank's share of the cores, without those on which it computes.
std::int64_t default_workers(const comm::World& world) {
  const auto computing = !world.device().is_cuda() ? std::int64_t{at::get_num_threads()} : 0;
  return std::clamp<std::int64_t>(cores_of_rank(world.info().local_size) - computing, 1, 16);
}

/// The inputs of the first readable sample from `first` on, as a batch.
nn::NamedTensors example_of(data::Dataset& data, std::int64_t first) {
  for (std::int64_t index = first; index < data.size(); ++index)
    if (auto sample = data.get(index, /*epoch=*/0, /*augment=*/false))
      return data.collate({std::move(*sample)}, {index}).inputs;
  throw DataError(fmt::format("none of the {} training samples can be read", data.size()));
}

}  // namespace

std::unique_ptr<comm::World> launch(const comm::WorldOptions& options) {
  return comm::World::start(detect_launch(), options);
}

Booster::Booster(comm::World& world, std::unique_ptr<Plugin> plugin, BoostOptions options, const Log* log)
    : world_(world),
      plugin_(std::move(plugin)),
      options_(std::move(options)),
      log_(log != nullptr ? *log : Log(world.rank())) {
  TRIREME_REQUIRE(plugin_ != nullptr, "Booster: the plugin is null; pass one from load_plugin()");
  check_options(options_);
  comm::warn_of_cpu(world_, log_);
  set_float32_matmul_precision(Precision::parse(options_.train.precision), world_.device());
  mesh_ = std::make_unique<comm::Mesh>(world_, plugin_->axes(world_.size()));
  reduction_ = std::make_unique<StepReduction>(*mesh_);
  const auto seed = static_cast<std::int64_t>(options_.seed);
  // Weights, dropout masks and the sample order are drawn on each rank and never compared.
  const auto least = comm::reduce_values(world_.group(), std::vector{seed, ~seed}, comm::ReduceOp::min);
  if (least[0] != ~least[1])
    throw ConfigError(
        fmt::format("BoostOptions::seed is {} on one rank and {} on another; set the same seed on all ranks, which "
                    "must draw the same random numbers",
                    static_cast<std::uint64_t>(least[0]), static_cast<std::uint64_t>(~least[1])));
}

data::LoaderOptions ModelAndOptimizer::loader_options() const {
  const auto& of = booster->options();
  const auto& group = booster->data_group();
  data::LoaderOptions options;
  options.dp_rank = group.rank();
  options.dp_size = group.size();
  options.seed = of.seed;
  if (!inputs.is_first) options.needed = inputs.side;
  options.side_inputs = inputs.side;
  options.exchange = inputs.exchange;
  options.skips = of.loading.on_bad_sample == "skip";
  options.strict = !inputs.all_first;
  options.workers = of.loading.workers.value_or(default_workers(booster->world()));
  options.prefetch = of.loading.prefetch;
  options.dtype = Precision::parse(of.train.precision).parameters;
  options.device = booster->world().device();
  return options;
}

Boosted Booster::boost(BoostInputs inputs) {
  TRIREME_REQUIRE(inputs.source.model && inputs.task && inputs.data,
                  "Booster::boost() needs a model, a task and data, but one of them is not set");
  const auto& train = options_.train;
  const auto& ranks = data_group();
  data::check_shares(train.global_batch, ranks.size());
  Boosted run;
  run.booster = this;
  run.inputs.side = inputs.source.model->side_input_names();
  run.task = std::move(inputs.task);
  check_combined(*run.task, inputs.data->combined_targets());
  data::check_rows(*inputs.data, options_.loading);
  inputs.source.sharded_logits = run.task->takes_sharded_logits();
  if (!inputs.source.example)
    inputs.source.example = [data = inputs.data, first = options_.loading.shard_data ? world_.rank() : 0] {
      return example_of(*data, first);
    };
  // The loader's options are checked before anything large is made.
  const auto steps = train.epochs * data::steps_per_epoch(*inputs.data, training_options(run));
  auto options = options_;
  if (inputs.optimizer != nullptr) {
    if (const auto set = config::as_section(optim::optimizer_fields(), &options_.optimizer).entries; !set.empty())
      throw ConfigError(fmt::format(
          "BoostInputs::optimizer: replaces BoostOptions::optimizer, but {} is set there; leave one of them out",
          set.begin()->first));
    options.optimizer = optimizer_options(*inputs.optimizer, nn::declarations(*inputs.source.model));
  }
  run.lr_schedule = std::make_unique<optim::LrSchedule>(options.lr_schedule, options.optimizer.lr,
                                                        std::min(steps, train.max_steps.value_or(steps)));
  boost_model(std::move(inputs.source), options, run);
  run.loader = std::make_unique<data::Loader>(std::move(inputs.data), training_options(run));
  run.criterion = training_criterion(run.task, run.sharded_logits.cross_entropy);
  return run;
}

ModelAndOptimizer Booster::boost(ModelSource source) {
  TRIREME_REQUIRE(source.model, "Booster::boost() needs a model, but ModelSource::model is not set");
  ModelAndOptimizer run;
  run.booster = this;
  run.inputs.side = source.model->side_input_names();
  boost_model(std::move(source), options_, run);
  return run;
}

void Booster::boost_model(ModelSource source, const BoostOptions& options, ModelAndOptimizer& run) {
  // Random draws of a user's own modules: repeatable, and with a different stream for each part of the data.
  at::manual_seed(random::mix(options_.seed, data_group().rank()));
  auto result = plugin_->boost(std::move(source), options, *mesh_, log_);
  TRIREME_REQUIRE(result.model && result.optimizer, "the plugin \"{}\" returned no model or no optimizer",
                  plugin_->name());
  run.model = std::move(result.model);
  run.optimizer = std::move(result.optimizer);
  run.inputs.is_first = result.reads_inputs;
  run.inputs.all_first = comm::every_rank(world_.group(), run.inputs.is_first);
  run.inputs.exchange = make_sample_exchange(options_.loading, *mesh_, run.inputs.is_first);
  connect_sums(run.model->module());
  run.model->module().set_loss_scale(run.optimizer->scaler().value());
  run.optimizer->set_buffer_sync(std::make_shared<BufferSync>(run.model->module(), *mesh_, result.broadcasts_buffers));
  run.optimizer->set_after_first_step([&world = world_] { world.end_first_step(); });
  run.sharded_logits = std::move(result.sharded_logits);
  run.model->train(true);
  if (const auto decay = options.train.ema_decay) run.average = std::make_unique<WeightAverage>(*run.model, *decay);
}

data::LoaderOptions Booster::training_options(const Boosted& run) const {
  const auto& train = options_.train;
  auto loading = run.loader_options();
  loading.global_batch = train.global_batch;
  loading.micro_batch =
      plugin_->micro_batch(train.micro_batch, (train.global_batch + loading.dp_size - 1) / loading.dp_size);
  loading.shuffle = train.shuffle;
  loading.augment = true;
  loading.drop_last = train.drop_last;
  loading.on_next = [group = data_group(), task = run.task](data::StepBatch& step) { weigh(*task, group, step); };
  return loading;
}

void Boosted::set_global_weight(data::StepBatch& batch) const { weigh(*task, booster->data_group(), batch); }

/// Connects layers that sum over the ranks of the batch to these ranks.
void Booster::connect_sums(nn::Model& model) {
  const auto& group = data_group();
  if (group.size() == 1) return;
  model.apply([&group](torch::nn::Module& module) {
    if (auto* layer = nn::summing_layer(module))
      layer->sum_over_ranks = [group](at::Tensor values) { group.all_reduce(std::move(values)); };
  });
}

}  // namespace trireme
