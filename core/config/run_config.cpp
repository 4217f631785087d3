#include "core/config/run_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/document.h"
#include "core/config/other_names.h"

namespace trireme::config {
namespace {

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const auto* table : core_tables()) names.push_back(table->section);
  names.push_back("plugin");
  return names;
}

// The section as written, or an empty one with the file's origin.
Table section_of(const Table& root, const std::string& name) {
  if (const Table* found = root.table(name)) return *found;
  Table none;
  none.path = name;
  none.origin = root.origin;
  return none;
}

// The section that has this key, to suggest for a misplaced key; "" if there is none.
std::string owner_of(const std::string& key) {
  for (const auto* table : core_tables())
    if (table->find(key) != nullptr) return table->section;
  return "";
}

void check_root(const Table& root) {
  const auto names = section_names();
  for (const auto& [key, entry] : root.entries) {
    const auto owner = owner_of(key);
    const bool is_section = std::find(names.begin(), names.end(), key) != names.end();
    throw ConfigError(fmt::format(
        "{}: {}", entry.origin.text(),
        is_section ? fmt::format("{} is a section; write [{}] and its keys below", key, key)
                   : fmt::format("\"{}\" is outside any section{}", key,
                                 owner.empty() ? std::string() : fmt::format("; it belongs in [{}]", owner))));
  }
  // Reports the first unknown section in the order of the file.
  const Table* unknown = nullptr;
  for (const auto& [name, section] : root.tables)
    if (std::find(names.begin(), names.end(), name) == names.end() &&
        (unknown == nullptr || section.origin.line < unknown->origin.line))
      unknown = &section;
  if (unknown == nullptr) return;
  throw ConfigError(fmt::format("{}: no section [{}] (known: {}){}", unknown->origin.text(), unknown->path,
                                text::join(names), text::did_you_mean(unknown->path, names)));
}

// Reports a key that belongs to another section, unless it is similar to a key of this one. In [parallel], a plugin's
// long name of a size (pp_size) gets a suggestion of the short one.
void check_misplaced(const Table& section, const FieldTable& fields) {
  for (const auto& [key, entry] : section.entries) {
    if (fields.find(key) != nullptr) continue;
    if (const auto here = name_here(key); !here.empty())
      throw ConfigError(fmt::format("{}: no key \"{}\" in [{}]; use {}", entry.origin.text(), key, section.path, here));
    if (!text::nearest(key, fields.keys()).empty()) continue;
    if (const auto owner = owner_of(key); !owner.empty())
      throw ConfigError(
          fmt::format("{}: no key \"{}\" in [{}]; it belongs in [{}]", entry.origin.text(), key, section.path, owner));
    if (section.path != "parallel") continue;
    const auto brief = key.substr(0, key.find("_size"));
    throw ConfigError(fmt::format(
        "{}: no key \"{}\" in [parallel]; {}", entry.origin.text(), key,
        brief != key && fields.find(brief) != nullptr
            ? fmt::format("did you mean \"{}\"?", brief)
            : fmt::format("a plugin's own keys belong in [plugin.NAME]  (trireme config --explain {})", key)));
  }
}

template <class T>
T read_core(const Table& root, const Fields<T>& fields) {
  const Table* section = root.table(fields.section);
  if (section != nullptr) check_misplaced(*section, fields);
  return read(section, fields);
}

void check_run(const Table& section, const RunOptions& run) {
  if (run.dir.empty()) fail(&section, "dir", "is empty; name the folder the run writes to");
  if (text::printable(run.dir) != run.dir) fail(&section, "dir", "is not UTF-8; choose another name");
  if (run.checkpoint_every > 0 && run.keep_checkpoints == 0)
    fail(&section, "checkpoint_every",
         "has no effect, because keep_checkpoints = 0 keeps none; set run.keep_checkpoints to 1 or more");
}

void check_data(const Table& section, const DataOptions& data) {
  if (data.name != "leaves" && data.path.empty())
    fail(&section, "path", fmt::format("is required with name = \"{}\": the folder of the data set", data.name));
  const bool drawn = data.name == "leaves" && data.path.empty();
  for (const auto* key : {"images", "leaf_seed"})
    if (data.name == "leaves" && !drawn && section.find(key) != nullptr)
      fail(&section, key, "has no effect, because data.path names leaves that exist already; remove one of the two");
  if (drawn && data.on_bad_sample == "skip")
    fail(&section, "on_bad_sample", "has no effect with leaves that are generated in memory; remove it");
  if (data.crop_scale[0] > data.crop_scale[1])
    fail(&section, "crop_scale", "must be the smaller fraction first, then the larger");
}

void check_train(const Table& section, const TrainOptions& train) {
  if (train.micro_batch && *train.micro_batch > train.global_batch)
    fail(&section, "micro_batch",
         fmt::format("is more than global_batch = {}; set it to at most {}", train.global_batch, train.global_batch));
  if (train.precision != "fp16") return;
  if (train.min_scale > train.initial_scale)
    fail(&section, section.find("min_scale") != nullptr ? "min_scale" : "initial_scale",
         fmt::format("breaks min_scale <= initial_scale: min_scale is {}, initial_scale {}", to_toml(train.min_scale),
                     to_toml(train.initial_scale)));
  if (train.initial_scale > train.max_scale)
    fail(&section, section.find("max_scale") != nullptr ? "max_scale" : "initial_scale",
         fmt::format("breaks initial_scale <= max_scale: initial_scale is {}, max_scale {}",
                     to_toml(train.initial_scale), to_toml(train.max_scale)));
}

void check_optimizer(const Table& section, const OptimizerOptions& optimizer) {
  if (optimizer.nesterov && optimizer.momentum == 0)
    fail(&section, "nesterov", "needs momentum above 0; set optimizer.momentum, or remove nesterov");
  if (optimizer.nesterov && optimizer.dampening != 0)
    fail(&section, "nesterov",
         fmt::format("needs dampening = 0, not {}; remove one of the two", to_toml(optimizer.dampening)));
  if (!optimizer.no_decay.empty() && optimizer.weight_decay == 0)
    fail(&section, "no_decay", "has no effect while weight_decay is 0; set optimizer.weight_decay, or remove no_decay");
  if (optimizer.dampening != 0 && optimizer.momentum == 0)
    fail(&section, "dampening", "has no effect without momentum; set optimizer.momentum, or remove dampening");
  for (const auto* key : {"no_decay", "freeze"}) {
    const auto& patterns = std::string(key) == "freeze" ? optimizer.freeze : optimizer.no_decay;
    if (std::find(patterns.begin(), patterns.end(), "") != patterns.end())
      fail(&section, key, "holds an empty name, which would match every parameter; to mean all, write \"*\"");
  }
}

void check_schedule(const Table& section, const LrScheduleOptions& schedule) {
  if (schedule.warmup_steps && schedule.warmup_ratio != 0)
    fail(&section, "warmup_steps",
         fmt::format("conflicts with {}; set only one of them", place_of(section, "warmup_ratio")));
  if (schedule.name == "step" && schedule.step_size == 0)
    fail(&section, "step_size", "is required with name = \"step\": the steps between two drops, 1 or more");
  const auto& milestones = schedule.milestones;
  if (schedule.name == "multi_step" && milestones.empty())
    fail(&section, "milestones", "are required with name = \"multi_step\": the steps of the drops");
  if (std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>()) != milestones.end())
    fail(&section, "milestones", "must be in ascending order, each step once");
}

// The plugin loader checks the [plugin.NAME] sections of unused plugins; this only checks the chosen one.
void check_plugin(const Table& root, const ParallelOptions& parallel) {
  if (parallel.plugin.empty())
    fail(root.table("parallel"), "plugin", "is empty; name a plugin (trireme plugins lists them)");
  const Table* plugins = root.table("plugin");
  if (plugins == nullptr) return;
  if (!plugins->entries.empty()) {
    const auto& [key, entry] = *plugins->entries.begin();
    throw ConfigError(
        fmt::format("{}: no key \"{}\" in [plugin]; a plugin's options belong in its own section, [plugin.{}]",
                    entry.origin.text(), key, parallel.plugin));
  }
  if (plugins->table(parallel.plugin) != nullptr) return;
  for (const auto& [name, section] : plugins->tables) {
    const auto hint = text::did_you_mean(name, std::vector<std::string>{parallel.plugin});
    if (!hint.empty())
      throw ConfigError(fmt::format("{}: [{}] is not the section of the chosen plugin \"{}\"{}", section.origin.text(),
                                    section.path, parallel.plugin, hint));
  }
}

// Splits [model] into the common keys and the keys of the chosen model.
void read_model(const Table& root, RunConfig& config) {
  Table common = section_of(root, "model");
  config.model_rest = common;
  common.tables.clear();
  for (auto entry = common.entries.begin(); entry != common.entries.end();)
    entry = model_fields().find(entry->first) != nullptr ? std::next(entry) : common.entries.erase(entry);
  for (const auto& field : model_fields().fields) config.model_rest.entries.erase(field.key);
  config.model = read(&common, model_fields());
}

}  // namespace

template <class T>
static Table checked_section(const Fields<T>& fields, const T& options) {
  auto section = as_section(fields, &options);
  read<T>(&section, fields);
  return section;
}

void check_options(const TrainOptions& options) {
  check_train(checked_section(booster_train_fields(), options), options);
}
void check_options(const OptimizerOptions& options) {
  check_optimizer(checked_section(optimizer_fields(), options), options);
}
void check_options(const LrScheduleOptions& options) {
  check_schedule(checked_section(lr_schedule_fields(), options), options);
}
void check_options(const LoadingOptions& options) { checked_section(loading_fields(), options); }

const Table* RunConfig::plugin_table(const std::string& name) const {
  const Table* plugins = root.table("plugin");
  return plugins == nullptr ? nullptr : plugins->table(name);
}

/// Expands "~/x" as a shell does; a shell does so only at the beginning of a word.
static void expand_home(std::string& path) {
  const auto home = environment("HOME");
  if ((path == "~" || path.starts_with("~/")) && !home.empty()) path.replace(0, 1, home);
}

RunConfig from_table(Table root) {
  check_root(root);
  RunConfig config;
  config.run = read_core(root, run_fields());
  read_model(root, config);
  config.data = read_core(root, data_fields());
  config.train = read_core(root, train_fields());
  config.optimizer = read_core(root, optimizer_fields());
  config.lr_schedule = read_core(root, lr_schedule_fields());
  config.parallel = read_core(root, parallel_fields());
  for (auto* path :
       {&config.run.dir, &config.run.resume, &config.model.weights, &config.data.path, &config.parallel.plugin})
    expand_home(*path);
  const bool named = section_of(root, "parallel").find("plugin") != nullptr;
  const auto& [plugin, dp, pp, sp, tp, zero, schedule, sp_mode] = config.parallel;
  if (!named && (pp || sp || tp || zero || schedule || sp_mode)) config.parallel.plugin = "hybrid_parallel";
  check_run(section_of(root, "run"), config.run);
  check_data(section_of(root, "data"), config.data);
  check_train(section_of(root, "train"), config.train);
  check_optimizer(section_of(root, "optimizer"), config.optimizer);
  check_schedule(section_of(root, "schedule"), config.lr_schedule);
  check_plugin(root, config.parallel);
  config.root = std::move(root);
  return config;
}

std::string print(const RunConfig& config, const std::string& model_rows, const std::string& plugin_section) {
  const auto own_rows = [&] {
    Table rows = config.model_rest;
    rows.path.clear();
    return print_table(rows);
  };
  std::string out = print_section(run_fields(), &config.run);
  out += "\n" + print_section(model_fields(), &config.model) + (model_rows.empty() ? own_rows() : model_rows);
  out += "\n" + print_section(data_fields(), &config.data);
  out += "\n" + print_section(train_fields(), &config.train);
  out += "\n" + print_section(optimizer_fields(), &config.optimizer);
  out += "\n" + print_section(lr_schedule_fields(), &config.lr_schedule);
  out += "\n" + print_section(parallel_fields(), &config.parallel);
  if (!plugin_section.empty()) return out + "\n" + plugin_section;
  if (const Table* plugins = config.root.table("plugin"))
    for (const auto& [name, table] : plugins->tables) out += "\n" + print_table(table);
  return out;
}

}  // namespace trireme::config
