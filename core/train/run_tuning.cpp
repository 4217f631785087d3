#include "core/train/run_tuning.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/base/cores.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/comm/devices.h"
#include "core/comm/host_values.h"
#include "core/config/table.h"
#include "core/launch/rank_variables.h"
#include "core/plan/layout_search.h"
#include "core/resume/run_folder.h"
#include "core/setup/plugin_sections.h"
#include "core/train/stop.h"
#include "core/tune/optimize.h"
#include "core/tune/tuning_cache.h"

namespace trireme::train {
namespace {

/// The part of a run's time that tuning may take.
constexpr double kPart = 0.01;
/// Tuning takes the time of so many steps at least: the reference, and one candidate.
constexpr std::int64_t kLeastSteps = 25;
/// Steps of a training that is only measured.
constexpr std::int64_t kNoEnd = 1'000'000'000'000;

/// The threads that the steps of a CPU rank may use; 0: the user or another launcher has set their number.
int most_threads(const RunConfig& config, const comm::World& world) {
  const auto set = environment("OMP_NUM_THREADS");
  const bool is_ours = set.empty() || set == environment(kThreadsAreOurs);
  return config.run.threads == 0 && is_ours && world.device().is_cpu() ? cores_of_rank(world.info().local_size) : 0;
}

/// The same training in float64, without what belongs to another precision.
RunConfig in_float64(const RunConfig& config, const std::string& plugin) {
  auto root = config.root;
  std::vector<std::string> of_precision{"precision",
                                        "enable_all_optimization",
                                        "enable_flash_attention",
                                        "attention_kernel",
                                        "enable_fused_normalization",
                                        "enable_jit_fused",
                                        "communication_dtype",
                                        "grad_accum_dtype",
                                        "memstats",
                                        "master_weights",
                                        "fp16"};
  for (const auto& field : train_fields().fields)
    if (field.rules.only && field.rules.only->key == "precision") of_precision.push_back(field.key);
  for (const auto& key : of_precision) {
    root.tables["train"].entries.erase(key);
    if (auto* plugins = root.table("plugin"); plugins != nullptr && plugins->table(plugin) != nullptr)
      root.tables["plugin"].tables[plugin].entries.erase(key);
  }
  config::apply_override(root, "train.precision=\"fp64\"");
  auto out = plan::with_root(config, std::move(root));
  out.data = config.data;
  return out;
}

tune::Twin twin_of(const RunSetup& setup, comm::World& world, const std::string& plugin) {
  auto config = in_float64(setup.config, plugin);
  auto made = configured_plugin(config);
  made->check(settings_of(config, *made, world.size()));
  return tune::make_twin(world, std::move(made), booster_options(config), training_inputs(setup));
}

tune::OptimizeOptions options_of(const RunSetup& setup, comm::World& world, const std::string& plugin) {
  const auto& config = setup.config;
  return {.budget_s = config.optimize.budget_s,
          .candidates = config.optimize.candidates,
          .switches = config.kinds.switches,
          .twin = [&setup, &world, plugin] { return twin_of(setup, world, plugin); },
          .most_threads = most_threads(config, world),
          .stops = [] { return StopSignals::received() != 0; }};
}

/// "" where it cannot be read.
std::string text_of(const std::string& file) {
  try {
    return read_file(file);
  } catch (const CheckpointError&) {
    return "";
  }
}

/// What the tuning of the run depends on. `config_toml`: the resolved configuration.
tune::TuningKey key_of(const RunSetup& setup, const comm::World& world, const std::string& config_toml) {
  const auto root = config::parse_text(config_toml, "config.toml");
  const auto values_of = [&root](const char* section, const auto& counts) {
    auto values = nlohmann::json::object();
    for (const auto& [name, entry] : config::section_of(root, section).entries)
      if (counts(name)) values[name] = config::to_toml(entry.value);
    return values;
  };
  tune::TuningKey key;
  for (const auto* section : {"lora", "parallel", "plugin"})
    if (const auto* table = root.table(section); table != nullptr) key.of[section] = config::print_table(*table);
  key.of["model"] = values_of("model", [](const std::string& name) { return name != "weights"; });
  key.of["optimizer"] = setup.config.optimizer.name;
  key.of["train"] = values_of("train", [](const std::string& name) {
    return name == "precision" || name == "task" || name.starts_with("recompute") || name.starts_with("enable_") ||
           name == "attention_kernel" || name == "offload_activations" || name == "ema_decay";
  });
  // Texts of a batch have lengths up to max_tokens.
  key.of["data"] = values_of("data", [](const std::string& name) { return name == "max_tokens"; });
  auto shapes = nlohmann::json::array();
  for (const auto& input : setup.data.info.spec.inputs)
    shapes.push_back(fmt::format("{} {}", input.name, fmt::join(input.shape, "x")));
  key.of["batch"] = {{"global", setup.batch.global}, {"micro", setup.batch.micro}, {"inputs", std::move(shapes)}};
  key.of["ranks"] = world.size();
  key.of["switches"] = setup.config.kinds.switches.names();
  key.of["candidates"] = setup.config.optimize.candidates;
  const bool cpu = world.device().is_cpu();
  key.where = {{"device", cpu ? cpu_name() : comm::cuda_device_name(world.device().index())},
               {"instructions", at::get_cpu_capability()},
               {"ranks on this machine", world.info().local_size},
               {"ranks on a device", world.ranks_per_device()},
               {"threads", at::get_num_threads()},
               {"threads at most", most_threads(setup.config, world)},
               {"libtorch", TORCH_VERSION},
               {"trireme", TRIREME_VERSION}};
  return key;
}

/// What a run that goes on must have in common with its earlier part to keep its choice.
tune::TuningKey key_of_own(const tune::TuningKey& key) {
  return {.of = {{"ranks", key.of.at("ranks")}, {"parallel", key.of.at("parallel")}, {"plugin", key.of.at("plugin")}},
          .where = nlohmann::json::object()};
}

/// A training that is tuned.
struct Tuned {
  const RunSetup& setup;
  Booster& booster;
  Boosted& run;
  const data::StepBatch& batch;
  std::int64_t steps;  ///< that are left
  tune::TuningKey key;
  tune::OptimizeOptions options;

  Tuned(const RunSetup& of, Booster& with, Boosted& boosted, const std::string& config_toml,
        const data::StepBatch& first, std::int64_t left)
      : setup(of),
        booster(with),
        run(boosted),
        batch(first),
        steps(left),
        key(key_of(of, with.world(), config_toml)),
        options(options_of(of, with.world(), with.plugin().name())) {}
};

/// Selects these choices on every rank. Returns one that the run does not have; "": it has all.
std::string select(const Tuned& tuned, const std::vector<std::string>& choices) {
  const auto missing = tune::select(tune::switches_of(tuned.run, tuned.options), choices);
  return missing.empty() ? "" : missing.front();
}

/// A stored tuning that is valid, whose choices are then selected on every rank; unset: there is none. `text`: of rank
/// 0, which decides; "": none is stored. `source` names it for the user.
std::optional<tune::Tuning> stored_tuning(const std::string& text, const tune::TuningKey& key, const Tuned& tuned,
                                          const char* source, std::vector<std::string>& said) {
  auto found = tune::parse_tuning(text, key);
  nlohmann::json message{{"stale", found.stale}, {"tuning", nullptr}};
  if (found.tuning) message["tuning"] = found.tuning->json();
  message = parse_json(comm::broadcast_text(tuned.booster.world().group(), json_text(message)));
  auto stale = message.at("stale").get<std::string>();
  if (!message.at("tuning").is_null()) {
    auto tuning = tune::Tuning::from_json(message.at("tuning"));
    const auto missing = select(tuned, tuning.chosen);  // the same on every rank, as the switches are
    if (missing.empty()) {
      tuning.source = source;
      return tuning;
    }
    stale = fmt::format("there is no {}", missing);
  }
  if (!stale.empty()) said.push_back(fmt::format("the one of {} is not used: {}", source, stale));
  return std::nullopt;
}

tune::Tuning tuned_now(Tuned& tuned) {
  auto& options = tuned.options;
  options.budget_steps = kPart * static_cast<double>(tuned.steps);
  if (const auto limit = tuned.setup.config.train.max_seconds)
    options.budget_s = std::min(options.budget_s, kPart * *limit);
  if (options.budget_steps < kLeastSteps)
    return {.not_tuned =
                fmt::format("1 % of {} is too little time; `trireme tune` does it once for all runs, which use "
                            "its result with optimize.tune = \"cached\" or \"once\"",
                            text::quantity(tuned.steps, "step"))};
  return tune::optimize(tuned.run, tuned.batch, options);
}

/// What [optimize] asks for: selected, read or measured. `own`: the content of RUN/tuning.json on rank 0 in a run that
/// goes on. `said`: receives lines for the user.
tune::Tuning tuning_of(Tuned& tuned, const std::string& own, std::vector<std::string>& said) {
  const auto& [mode, budget, candidates, choices] = tuned.setup.config.optimize;
  if (!choices.empty()) {
    if (const auto missing = select(tuned, choices); !missing.empty())
      config::fail(tuned.setup.config.root.table("optimize"), "choices",
                   fmt::format("this run has no {}; `trireme tune` shows what it has", missing));
    return tune::Tuning{.chosen = choices, .source = "[optimize] choices"};
  }
  const bool first = tuned.booster.world().rank() == 0;
  // A run that goes on keeps its kernels, so that it equals one that was not interrupted.
  auto tuning = stored_tuning(own, key_of_own(tuned.key), tuned, "this run's folder", said);
  if (!tuning && mode != "always")
    tuning = stored_tuning(first ? tune::read_cached_tuning(tuned.key) : "", tuned.key, tuned, "the cache", said);
  if (tuning) return *std::move(tuning);
  if (mode == "cached")
    return tune::Tuning{.not_tuned = "nothing is stored for this model, layout and machine; `trireme tune` makes it",
                        .source = "the cache"};
  tuning = tuned_now(tuned);
  if (first && tuning->not_tuned.empty() && tuning->is_complete) tune::cache_tuning(tuned.key, *tuning);
  return *std::move(tuning);
}

bool asks_for_tuning(const RunConfig& config) {
  return config.optimize.tune != "off" || !config.optimize.choices.empty();
}

}  // namespace

void tune_run(RunContext& run, const data::StepBatch& batch) {
  if (!asks_for_tuning(run.setup.config) || batch.micro.empty()) return;
  const bool first = run.world.rank() == 0;
  const auto file = path_in(run.folder->dir(), kTuningFile);
  Tuned tuned(run.setup, run.booster, run.boosted, run.folder->config_toml(), batch,
              run.setup.batch.steps - run.state.at.global_step);
  std::vector<std::string> said;
  run.folder->metric({{"kind", "event"}, {"event", "tuning"}, {"step", run.state.at.global_step}});
  const auto tuning = tuning_of(tuned, first && !run.resumed_from.empty() ? text_of(file) : "", said);
  if (tuning.stopped) {
    run.stopped_by = StopOnRequest::kBySignal;
    return;
  }
  for (const auto& line : said) run.say("tuning    " + line);
  // Also where nothing was tuned, so that the run keeps the defaults when it goes on.
  if (first) run.folder->record(kTuningFile, [&] { write_file(file, tune::tuning_text(tuned.key, tuning)); });
  const bool measured = tuning.source.empty();
  if (measured && !tuning.candidates.empty())
    for (const auto& line : text::split(tuning.table(), '\n')) run.say("          " + line);
  for (const auto& note : tuning.notes) run.say("          " + note);
  if (!tuning.not_tuned.empty()) return run.say("tuning    none: " + tuning.not_tuned);
  run.say(fmt::format(
      "tuning    {}{}", tuning.line(),
      measured ? fmt::format("; took {:.1f} s", tuning.seconds) : fmt::format("; as {} says", tuning.source)));
  run.folder->metric({{"kind", "event"},
                      {"event", "tuned"},
                      {"step", run.state.at.global_step},
                      {"seconds", measured ? tuning.seconds : 0},
                      {"gain", tuning.gain},
                      {"chosen", tuning.chosen}});
}

std::string tune_measured(const RunSetup& setup, const std::string& config_toml, Booster& booster, Boosted& run,
                          const data::StepBatch& batch) {
  if (!asks_for_tuning(setup.config) || batch.micro.empty()) return "";
  Tuned tuned(setup, booster, run, config_toml, batch, kNoEnd);
  std::vector<std::string> said;
  const auto tuning = tuning_of(tuned, "", said);
  return tuning.line();
}

tune::Tuning tune_alone(RunSetup setup, comm::World& world) {
  const auto config_toml = config_toml_of(setup);
  const StopSignals signals(/*grace_seconds=*/0);
  Booster booster(world, std::move(setup.plugin), booster_options(setup.config));
  auto run = booster.boost(training_inputs(setup));
  run.loader->start_epoch(0);
  const auto batch = run.loader->next();
  if (!batch || batch->micro.empty()) throw DataError("there is no batch of training samples to tune with");
  const Tuned tuned(setup, booster, run, config_toml, *batch, kNoEnd);
  auto tuning = tune::optimize(run, *batch, tuned.options);
  if (world.rank() == 0 && tuning.not_tuned.empty() && tuning.is_complete && !tune::cache_tuning(tuned.key, tuning))
    setup.log.warn("the tuning could not be kept in {}", cache_folder("tuning"));
  return tuning;
}

}  // namespace trireme::train
