#include "core/train/prepare.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/precision.h"
#include "core/checkpoint/adapters.h"
#include "core/checkpoint/weights.h"
#include "core/comm/world.h"
#include "core/config/location.h"
#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/train/deterministic.h"
#include "core/train/evaluate.h"
#include "core/train/lora.h"
#include "core/train/plugin_sections.h"
#include "core/train/pretrained.h"
#include "core/train/task_choice.h"

namespace trireme::train {
namespace {

int data_parallel_size(const Plugin& plugin, int world_size) {
  int size = 1;
  for (const auto& axis : plugin.axes(world_size))
    if (axis.kind.splits_samples) size *= axis.size;
  return size;
}

void check_layout(const Prepared& p) {
  const auto dp = data_parallel_size(*p.plugin, p.launch.size);
  const auto wanted = p.config.parallel.sizes.at("dp").value_or(dp);
  if (wanted != dp)
    config::fail(
        p.config.root.table("parallel"), "dp",
        fmt::format("the layout leaves {} of {} for data parallelism; set dp = {}, or start {}", dp,
                    text::quantity(p.launch.size, "rank"), dp, text::quantity(p.launch.size / dp * wanted, "rank")));
}

/// Resets what matters only in a backward pass: the run may have been on another device or in other pipeline stages.
void forget_backward(TrainOptions& train) {
  const TrainOptions none;
  train.recompute = none.recompute;
  train.recompute_ratio = none.recompute_ratio;
  train.recompute_layers_per_stage.clear();
  train.recompute_modules.clear();
  train.offload_activations = none.offload_activations;
}

/// Sets the batch sizes. `trains`: false for an evaluation, which has no global batch and uses a value that suits its
/// ranks.
void resolve_batch(Prepared& p, bool trains) {
  const auto* section = p.config.root.table("train");
  auto& train = p.config.train;
  const int dp = data_parallel_size(*p.plugin, p.launch.size);
  if (!trains) {
    train.global_batch = std::max<std::int64_t>(train.global_batch, dp);
    train.drop_last = false;
    forget_backward(train);
  }
  data::check_shares(train.global_batch, dp);
  if (train.drop_last && p.data.train->size() < train.global_batch)
    config::fail(section, "global_batch",
                 fmt::format("drop_last = true leaves no steps: {} do not fill a global batch of {}",
                             text::quantity(p.data.train->size(), "sample"), train.global_batch));
  if (trains && train.global_batch == 1 && !p.data.train->combined_targets().empty())
    config::fail(section, "global_batch",
                 "a batch of one sample has no other one to mix it with (data.mixup, data.cutmix); raise global_batch, "
                 "or turn mixing off");
  const std::int64_t share = (train.global_batch + dp - 1) / dp;
  p.micro_batch = p.plugin->micro_batch(train.micro_batch, share);
  p.eval_batch = train.eval_batch.value_or(4 * p.micro_batch);
}

/// Checks what the ranks would otherwise reject at run time, and prepares the process. The CUDA driver is queried only
/// where its answer matters.
void check_device(const Prepared& p) {
  const auto& device = p.config.run.device;
  const bool tf32 = Precision::parse(p.config.train.precision).tf32;
  const bool deterministic = p.config.run.deterministic;
  if (device != "cuda" && !tf32 && !deterministic) return;
  bool cuda = false;
  try {
    cuda = comm::wants_cuda(device, device == "cpu" ? comm::CudaDevices() : comm::cuda_devices());
  } catch (const ConfigError& error) {
    config::fail(p.config.root.table("run"), "device", error.what());
  }
  if (tf32 && !cuda) config::fail(p.config.root.table("train"), "precision", kTf32OnCpu);
  make_deterministic(p.config, cuda);
}

/// Weights that are evaluated must have a head. @throws CheckpointError
void check_head(const Prepared& p, nn::Model& model) {
  const auto head = p.kind->head_prefix();
  if (p.adapters.empty() && !p.weights.empty() && !head.empty() && !checkpoint::has_head(p.weights, model, head))
    throw CheckpointError(fmt::format(
        "{0}: no classifier head in these weights; train one first, from model.weights = \"{0}\"", p.weights));
}

/// Sets the number of steps, and checks what the lr schedule would otherwise reject on the ranks: warm-up, drops.
void resolve_steps(Prepared& p, bool trains) {
  const auto& train = p.config.train;
  const data::Sampler sampler(
      {.samples = p.data.train->size(), .global_batch = train.global_batch, .drop_last = train.drop_last});
  p.total_steps = train.epochs * sampler.steps_per_epoch();
  if (train.max_steps) p.total_steps = std::min(p.total_steps, *train.max_steps);
  if (!trains) return;
  optim::LrSchedule(p.config.schedule, p.config.optimizer.lr, p.total_steps);
  // With max_steps the training may be a trial of a configuration for a longer one.
  if (train.eval_every && !train.max_steps && *train.eval_every > p.total_steps)
    config::fail(p.config.root.table("train"), "eval_every",
                 fmt::format("has no effect, because the training has only {}; lower it, or remove it",
                             text::quantity(p.total_steps, "step")));
}

/// Checks what the optimizer would otherwise reject on the ranks: name patterns.
void check_optimizer(const Prepared& p, nn::Model& model) {
  std::vector<optim::NamedTensor> names;
  for (const auto& parameter : nn::declarations(model))
    names.push_back({parameter.name, at::empty({0}), !parameter.value.requires_grad()});
  optim::make_groups(p.config.optimizer, names);
}

/// Opens the data set, or the files that `inputs` names in its place.
void open_data(Prepared& p, bool evaluation, const Log& log, const std::vector<std::string>& inputs) {
  require_data(p.config);
  if (!inputs.empty()) p.config.data.on_bad_sample = "skip";
  const data::OpenContext context{.seed = static_cast<std::uint64_t>(p.config.run.seed),
                                  .skip_bad_samples = p.config.data.on_bad_sample == "skip",
                                  .shard_data = p.config.data.shard_data,
                                  .weights = p.weights,
                                  .section = p.config.root.table("data"),
                                  .launch = p.launch,
                                  .log = log};
  if (inputs.empty()) {
    p.data = data::open(p.config.data.source, context);
    return adopt_labels(p, evaluation, log);
  }
  auto samples = data::open_files(p.config.data.source, context, inputs);
  p.files = std::move(samples.files);
  p.data.train = p.data.validation = std::move(samples.data);
  p.data.info.source = p.config.data.name;
  p.data.info.spec = p.data.validation->spec();
  p.data.info.spec.class_names = classes_of_weights(p);
  p.data.info.spec.classes = static_cast<std::int64_t>(p.data.info.spec.class_names.size());
}

void resolve_model(Prepared& p, bool evaluation) {
  p.model_options = p.kind->default_options();
  config::read_into(&p.config.model_keys, p.kind->fields(), p.model_options.get());
  if (!p.weights.empty()) {
    const auto stored = checkpoint::read_beside_weights(p.weights);
    const auto file = checkpoint::beside_weights(p.weights, checkpoint::kModelConfig);
    if (!stored.is_null() && !has_only_labels(stored) && !p.kind->from_hf(p.model_options.get(), stored, file)) {
      // timm's files have an architecture in place of Hugging Face's model_type.
      const auto* key = stored.is_object() && !stored.contains("model_type") && stored.contains("architecture")
                            ? "architecture"
                            : "model_type";
      const auto problem = fmt::format("{}: {} is {}, but model.name is \"{}\"; choose other weights", file, key,
                                       stored.is_object() ? stored.value(key, nlohmann::json("")).dump() : "missing",
                                       p.config.model.name);
      if (evaluation) throw ConfigError(problem);  // the weights are an argument of the command
      config::fail(p.config.root.table("model"), "weights", problem);
    }
  }
  auto data = p.data.info.spec;
  data.classes = p.task->outputs();
  if (data.classes != static_cast<std::int64_t>(data.class_names.size())) data.class_names.clear();
  p.kind->resolve(p.model_options.get(), data);
}

}  // namespace

static Prepared begun(RunConfig config, const LaunchInfo& launch, const Log& log) {
  Prepared p;
  p.config = std::move(config);
  p.launch = launch;
  p.log = log;
  return p;
}

Prepared prepare_generation(RunConfig config, const LaunchInfo& launch, const std::string& weights, const Log& log) {
  auto p = begun(std::move(config), launch, log);
  forget_backward(p.config.train);
  config::with_location(p.config.root, [&] {
    locate_all_weights(p, weights);
    p.kind = p.config.kinds.models.at(p.config.model.name);
    if (const auto& task = name_task(p); task != "causal_lm")
      throw ConfigError(
          fmt::format("{}: the model \"{}\" is for the task \"{}\", but text is generated by one for causal_lm; choose "
                      "other weights",
                      weights, p.config.model.name, task));
    p.data.info.source = "text";
    p.data.info.spec.inputs = {{.name = "input_ids", .dtype = at::kLong, .shape = {-1}}};
    p.data.info.spec.targets = {{.name = nn::kLabels, .dtype = at::kLong, .shape = {-1}}};
    choose_task(p);
    resolve_model(p, /*evaluation=*/true);
    check_device(p);
    check_head(p, *model_source(p).model);
  });
  return p;
}

Prepared prepare(RunConfig config, const LaunchInfo& launch, const std::string& weights, const Log& log,
                 const std::vector<std::string>& inputs) {
  auto p = begun(std::move(config), launch, log);
  const bool trains = weights.empty();  // an evaluation passes its weights as an argument
  config::with_location(p.config.root, [&] {
    locate_all_weights(p, weights);
    p.plugin = configured_plugin(p.config);
    p.plugin->check(settings_of(p.config, *p.plugin, launch.size));
    check_device(p);
    comm::Mesh::validate(p.plugin->axes(launch.size), launch.size);
    check_layout(p);
    p.kind = p.config.kinds.models.at(p.config.model.name);
    open_data(p, !trains, log, inputs);
    choose_task(p);
    if (trains)
      keep_files_of_weights(p);
    else
      check_problem(p);
    try {
      resolve_model(p, !trains);
    } catch (const ConfigError& error) {
      const std::string what = error.what(), key = "model.weights: ";
      if (weights.empty() || !what.starts_with(key)) throw;
      const auto problem = what.substr(key.size());  // the path is from the command line
      throw ConfigError(problem.starts_with(p.weights) ? problem : fmt::format("{}: {}", weights, problem));
    }
    check_prepared(p, trains);
  });
  return p;
}

void check_prepared(Prepared& p, bool trains) {
  for (const auto split : data::kSplits)
    if (const auto& data = p.data.of(split)) data::check_rows(*data, p.config.data);
  if (trains) check_combined(*p.task, p.data.train->combined_targets());
  resolve_batch(p, trains);
  resolve_steps(p, trains);
  const auto source = model_source(p);
  if (trains && !p.adapters.empty()) p.config.lora->loaded = checkpoint::parameters_in(p.adapters, *source.model);
  p.plugin->check_model(source, settings_of(p.config, *p.plugin, p.launch.size));
  trains ? check_optimizer(p, *source.model) : check_head(p, *source.model);
}

}  // namespace trireme::train
