#include "core/setup/run_setup.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/booster/precision.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/checkpoint/weights/weights.h"
#include "core/config/table.h"
#include "core/data/loader.h"
#include "core/data/sampler.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/parameters.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/setup/deterministic.h"
#include "core/setup/export_texts.h"
#include "core/setup/plugin_sections.h"

namespace trireme::train {
namespace {

void check_layout(const RunConfig& config, const Plugin& plugin, int ranks) {
  const auto dp = data_parallel_size(plugin, ranks);
  const auto wanted = config.parallel.sizes.at("dp").value_or(dp);
  if (wanted != dp)
    config::fail(config.root.table("parallel"), "dp",
                 fmt::format("the layout leaves {} of {} for data parallelism; set dp = {}, or start {}", dp,
                             text::quantity(ranks, "rank"), dp, text::quantity(ranks / dp * wanted, "rank")));
}

/// Checks what the ranks would otherwise reject at run time, and prepares the process. The CUDA driver is queried only
/// where its answer matters.
void check_device(const RunConfig& config) {
  const auto& device = config.run.device;
  const bool tf32 = Precision::parse(config.train.precision).tf32;
  if (device != "cuda" && !tf32 && !config.run.deterministic) return;
  bool cuda = false;
  try {
    cuda = comm::wants_cuda(device, device == "cpu" ? comm::CudaDevices() : comm::cuda_devices());
  } catch (const ConfigError& error) {
    config::fail(config.root.table("run"), "device", error.what());
  }
  if (tf32 && !cuda) config::fail(config.root.table("train"), "precision", kTf32OnCpu);
  make_deterministic(config, cuda);
}

/// The plugin, which fits the device and the number of ranks. Sets what it shares with [train].
std::unique_ptr<Plugin> choose_plugin(RunConfig& config, int ranks) {
  auto plugin = configured_plugin(config);
  plugin->check(settings_of(config, *plugin, ranks));
  check_device(config);
  comm::Mesh::validate(plugin->axes(ranks), ranks);
  check_layout(config, *plugin, ranks);
  return plugin;
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

/// The number of optimizer steps. Checks what the lr schedule would otherwise reject on the ranks: warm-up, drops.
std::int64_t plan_steps(const RunConfig& config, data::Dataset& data) {
  const auto& train = config.train;
  const auto* section = config.root.table("train");
  if (train.drop_last && data.size() < train.global_batch)
    config::fail(section, "global_batch",
                 fmt::format("drop_last = true leaves no steps: {} do not fill a global batch of {}",
                             text::quantity(data.size(), "sample"), train.global_batch));
  if (train.global_batch == 1 && !data.combined_targets().empty())
    config::fail(section, "global_batch",
                 "a batch of one sample has no other one to mix it with (data.mixup, data.cutmix); raise global_batch, "
                 "or turn mixing off");
  const data::Sampler sampler(
      {.samples = data.size(), .global_batch = train.global_batch, .drop_last = train.drop_last});
  auto steps = train.epochs * sampler.steps_per_epoch();
  if (train.max_steps) steps = std::min(steps, *train.max_steps);
  optim::LrSchedule(config.schedule, config.optimizer.lr, steps);
  // With max_steps the training may be a trial of a configuration for a longer one.
  if (train.eval_every && !train.max_steps && *train.eval_every > steps)
    config::fail(section, "eval_every",
                 fmt::format("has no effect, because the training has only {}; lower it, or remove it",
                             text::quantity(steps, "step")));
  return steps;
}

/// `data`: of a training, whose steps are planned; null for an evaluation.
BatchPlan plan_batch(const RunConfig& config, const Plugin& plugin, int ranks, data::Dataset* data) {
  const auto& train = config.train;
  const int dp = data_parallel_size(plugin, ranks);
  data::check_shares(train.global_batch, dp);
  const std::int64_t share = (train.global_batch + dp - 1) / dp;
  const auto micro = plugin.micro_batch(train.micro_batch, share);
  return {.global = train.global_batch,
          .micro = micro,
          .eval = train.eval_batch.value_or(4 * micro),
          .steps = data == nullptr ? 0 : plan_steps(config, *data)};
}

void check_rows(data::Datasets& data, const data::LoadingOptions& options) {
  for (const auto split : data::kSplits)
    if (const auto& set = data.of(split)) data::check_rows(*set, options);
}

/// A model that fits the plugin and reads all inputs of the data.
ModelSource checked_model(const RunSetup& setup) {
  auto source = setup.model.source();
  const auto* section = setup.config.root.table("model");
  if (const auto problem = nn::unread_side_input(*source.model, setup.data.info.spec); !problem.empty())
    config::fail(section, "name", problem);
  try {
    shardformer::check_roles(source.policy, setup.config.kinds.roles);
  } catch (const ConfigError& error) {
    config::fail(section, "name", error.what());
  }
  setup.plugin->check_model(source, settings_of(setup.config, *setup.plugin, setup.launch.size));
  return source;
}

/// Weights that are evaluated must have a head. @throws CheckpointError
void check_head(const LoadedWeights& weights, const ModelSource& source) {
  const auto& head = source.head_prefix;
  if (weights.adapters.empty() && !head.empty() && !checkpoint::has_head(weights.path, *source.model, head))
    throw CheckpointError(fmt::format(
        "{0}: no classifier head in these weights; train one first, from model.weights = \"{0}\"", weights.path));
}

/// Checks what the optimizer would otherwise reject on the ranks: name patterns.
void check_optimizer(const optim::OptimizerOptions& options, nn::Model& model) {
  std::vector<optim::NamedTensor> names;
  for (const auto& parameter : nn::declarations(model))
    names.push_back({parameter.name, at::empty({0}), !parameter.value.requires_grad()});
  optim::make_groups(options, names);
}

/// Errors about model.weights then point at the argument of the command.
void set_weights_argument(config::Table& root, const std::string& weights) {
  auto& section = root.tables["model"];
  section.path = "model";
  section.entries["weights"] = {.value = weights, .origin = {.source = "WEIGHTS"}};
}

}  // namespace

int data_parallel_size(const Plugin& plugin, int world_size) {
  int size = 1;
  for (const auto& axis : plugin.axes(world_size))
    if (axis.kind.splits_samples) size *= axis.size;
  return size;
}

RunSetup prepare_training(RunConfig of, const LaunchInfo& launch, const Log& log, const RunSetup* opened) {
  RunSetup setup{.config = std::move(of), .launch = launch, .log = log};
  auto& config = setup.config;
  config::with_location(config.root, [&] {
    setup.weights = find_loaded_weights(config, "");
    setup.plugin = choose_plugin(config, launch.size);
    const auto kind = config.kinds.models.at(config.model.name);
    if (opened == nullptr) {
      setup.data = open_data(config, setup.weights, kind->head_prefix(), launch, log, /*trains=*/true);
    } else {
      config.data = opened->config.data;
      setup.data = opened->data;
    }
    const auto& spec = setup.data.info.spec;
    setup.task = choose_task(config, name_task(config, setup.weights, *kind, spec), setup.data.info);
    setup.kept_files = files_to_keep(setup.weights, setup.task, spec);
    setup.model = choose_model(config, setup.weights, kind, setup.task, spec);
    finish_training_setup(setup);
  });
  return setup;
}

void finish_training_setup(RunSetup& setup) {
  const auto& config = setup.config;
  check_rows(setup.data, config.data);
  check_combined(*setup.task.made, setup.data.train->combined_targets());
  setup.batch = plan_batch(config, *setup.plugin, setup.launch.size, setup.data.train.get());
  const auto source = checked_model(setup);
  auto& weights = setup.weights;
  if (!weights.adapters.empty()) weights.lora->loaded = checkpoint::parameters_in(weights.adapters, *source.model);
  check_optimizer(config.optimizer, *source.model);
}

RunSetup prepare_evaluation(RunConfig of, const LaunchInfo& launch, const std::string& weights, const Log& log,
                            const std::vector<std::string>& inputs) {
  RunSetup setup{.config = std::move(of), .launch = launch, .log = log};
  auto& config = setup.config;
  set_weights_argument(config.root, weights);
  config::with_location(config.root, [&] {
    setup.weights = find_loaded_weights(config, weights);
    setup.plugin = choose_plugin(config, launch.size);
    forget_backward(config.train);
    const auto kind = config.kinds.models.at(config.model.name);
    if (inputs.empty()) {
      setup.data = open_data(config, setup.weights, kind->head_prefix(), launch, log, /*trains=*/false);
    } else {
      auto opened = open_files(config, setup.weights, kind->head_prefix(), launch, log, inputs);
      setup.data = std::move(opened.data);
      setup.files = std::move(opened.samples);
    }
    const auto task = name_task(config, setup.weights, *kind, setup.data.info.spec);
    setup.task = choose_task(config, task, setup.data.info);
    check_problem(config, setup.weights, setup.task.kind);
    setup.model = choose_model(config, setup.weights, kind, setup.task, setup.data.info.spec);
    check_rows(setup.data, config.data);
    // There are no steps: any global batch will do that gives each rank a sample.
    auto& train = config.train;
    train.global_batch = std::max<std::int64_t>(train.global_batch, data_parallel_size(*setup.plugin, launch.size));
    train.drop_last = false;
    setup.batch = plan_batch(config, *setup.plugin, launch.size, nullptr);
    check_head(setup.weights, checked_model(setup));
  });
  return setup;
}

RunSetup prepare_generation(RunConfig of, const LaunchInfo& launch, const std::string& weights, const Log& log) {
  RunSetup setup{.config = std::move(of), .launch = launch, .log = log};
  auto& config = setup.config;
  set_weights_argument(config.root, weights);
  config::with_location(config.root, [&] {
    setup.weights = find_loaded_weights(config, weights);
    forget_backward(config.train);
    const auto kind = config.kinds.models.at(config.model.name);
    auto& info = setup.data.info;
    const auto task = name_task(config, setup.weights, *kind, info.spec);
    if (task != "causal_lm")
      throw ConfigError(
          fmt::format("{}: the model \"{}\" is for the task \"{}\", but text is generated by one for causal_lm; choose "
                      "other weights",
                      weights, config.model.name, task));
    info.source = "text";
    info.spec.inputs = {{.name = "input_ids", .dtype = at::kLong, .shape = {-1}}};
    info.spec.targets = {{.name = nn::kLabels, .dtype = at::kLong, .shape = {-1}}};
    setup.task = choose_task(config, task, info);
    setup.model = choose_model(config, setup.weights, kind, setup.task, info.spec);
    check_device(config);
    check_head(setup.weights, setup.model.source());
  });
  return setup;
}

BoostOptions booster_options(const RunConfig& config) {
  return {.train = config.train,
          .optimizer = config.optimizer,
          .lr_schedule = config.schedule,
          .loading = config.data,
          .seed = static_cast<std::uint64_t>(config.run.seed)};
}

BoostInputs training_inputs(const RunSetup& setup) {
  return {.source = setup.model.source(), .task = setup.task.made, .data = setup.data.train};
}

std::string resolved_toml(RunConfig c, const TaskKind* task, const Plugin& plugin, const std::string& model_rows) {
  if (task != nullptr) c.train.task = task->name();
  // The plugin's section contains these settings in full.
  auto& parallel = c.parallel;
  for (auto& [key, size] : parallel.sizes)
    if (key != "dp") size.reset();
  parallel.zero.reset();
  for (auto* name : {&parallel.schedule, &parallel.sp_mode}) name->reset();
  return print(c, task, model_rows, config::print_section(plugin.fields(), plugin.options()));
}

}  // namespace trireme::train
