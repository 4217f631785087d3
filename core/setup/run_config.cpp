#include "core/setup/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/setup/extension.h"
#include "core/setup/known_keys.h"

namespace trireme::train {
namespace {

using config::fail;
using config::section_of;
using config::Table;

/// Reads the sections of a file, with the kinds that it can select.
class Reader {
 public:
  explicit Reader(const RunConfig& config)
      : root_(config.root), kinds_(config.kinds), own_(own_tables(config.kinds)), all_(section_tables()) {
    all_.insert(all_.end(), own_.begin(), own_.end());
  }

  const FieldTables& all() const { return all_; }

  template <class T>
  T whole_section(const Fields<T>& fields) const {
    const auto section = section_of(root_, fields.section);
    check_known_keys(section, fields, {}, all_);
    return config::read(&section, fields);
  }

  /// Reads a section whose `name` selects a factory with keys of its own.
  template <class T, class F, class Base>
  T open_section(const Fields<T>& fields, const Registry<F>& factories, F Base::*chosen) const {
    if (factories.names().empty()) return whole_section(fields);  // a program's, which selects by itself
    return open_section(section_of(root_, fields.section), fields, factories, chosen);
  }
  template <class T, class F, class Base>
  T open_section(const Table& section, const Fields<T>& fields, const Registry<F>& factories, F Base::*chosen) const {
    const auto parts = config::split_section(section, fields);
    auto out = common_keys<T>(parts.common, fields, factories.names());
    out.*chosen = factories.at(out.name);
    check_known_keys(section, fields, (out.*chosen).fields(), all_);
    config::read_own(parts.own, (out.*chosen).fields(), own_of(section.path), (out.*chosen).options());
    return out;
  }

  DataSection data_section() const {
    if (kinds_.datasets.names().empty()) return whole_section(data_fields());  // a program's, which selects by itself
    auto section = section_of(root_, "data");
    const auto parts = take_repeated(section, "mix", "further data");
    auto out = open_section(section, data_fields(), kinds_.datasets, &DataSection::source);
    if (parts.empty() && out.weight != DataSection{}.weight)
      fail(&section, "weight", "has no effect without [[data.mix]]; remove it");
    for (auto part : parts) {
      part.path = section.path;
      for (const auto& field : data_fields().fields)
        if (part.find(field.key) != nullptr && mix_fields().find(field.key) == nullptr)
          fail(&part, field.key, "is said in [data], for all sources; remove it");
      part.entries.try_emplace("name", config::Entry{.value = out.name, .origin = part.origin});
      out.mix.push_back(open_section(part, mix_fields(), kinds_.datasets, &MixSection::source));
      out.mix.back().written = std::move(part);
    }
    return out;
  }

  ModelSection model_section(Table& keys) const {
    const auto section = section_of(root_, "model");
    auto parts = config::split_section(section, model_fields());
    auto out = common_keys<ModelSection>(parts.common, model_fields(), kinds_.models.names());
    const auto& kind = kinds_.models.at(out.name);
    check_known_keys(section, model_fields(), kind->fields(), all_);
    config::read_own(parts.own, kind->fields(), own_of("model"), kind->default_options().get());
    std::erase_if(parts.own.entries, [&](const auto& entry) { return kind->fields().find(entry.first) == nullptr; });
    keys = std::move(parts.own);
    return out;
  }

  OptimizerSection optimizer_section() const {
    auto section = section_of(root_, "optimizer");
    const auto groups = take_repeated(section, "group", "groups of parameters");
    auto out = open_section(section, optimizer_section_fields(), kinds_.optimizers, &OptimizerSection::method);
    for (const auto& group : groups) out.groups.push_back(config::read(&group, optim::group_fields()));
    if (const auto problem = optim::problem_of_no_decay(out); !problem.empty()) fail(&section, "no_decay", problem);
    return out;
  }

  TrainSection train_section(Table& keys) const {
    const auto section = section_of(root_, "train");
    auto parts = config::split_section(section, train_section_fields());
    FieldTable of_all_tasks;  // which one trains the model is known only when the weights have been read
    for (const auto* table : own_of("train"))
      of_all_tasks.fields.insert(of_all_tasks.fields.end(), table->fields.begin(), table->fields.end());
    check_known_keys(section, train_section_fields(), of_all_tasks, all_);
    keys = std::move(parts.own);
    return config::read(&parts.common, train_section_fields());
  }

  FieldTables own_of(const std::string& section) const {
    FieldTables tables;
    for (const auto* table : own_)
      if (table->section == section) tables.push_back(table);
    return tables;
  }

 private:
  /// Takes its only subsections that may be repeated, [[section.name]], out of a section. `what` they are, for
  /// messages.
  static std::vector<Table> take_repeated(Table& section, const std::string& name, const char* what) {
    if (const auto* single = section.table(name))
      throw ConfigError(fmt::format("{0}: [{1}.{2}] may be repeated, so it has two brackets: [[{1}.{2}]]",
                                    single->origin.text(), section.path, name));
    for (const auto& [other, array] : section.arrays)
      if (other != name)
        throw ConfigError(fmt::format("{}: no section [[{}.{}]]; {} are [[{}.{}]]", array.front().origin.text(),
                                      section.path, other, what, section.path, name));
    auto out = std::exchange(section.arrays[name], {});
    section.arrays.clear();
    return out;
  }

  /// Reads the keys that a section has for all kinds; `names` are the values that its `name` can have.
  template <class T>
  static T common_keys(const Table& section, const FieldTable& fields, const std::vector<std::string>& names) {
    auto table = fields;
    for (auto& field : table.fields)
      if (field.key == "name") field.rules.choices = names;
    T out{};
    config::read_into(&section, table, &out);
    return out;
  }

  const Table& root_;
  const Kinds& kinds_;
  FieldTables own_, all_;
};

}  // namespace

std::vector<const FieldTable*> own_tables(const Kinds& kinds) {
  FieldTables tables;
  const auto add = [&](const auto& registry, auto table_of) {
    for (const auto& name : registry.names()) tables.push_back(&table_of(registry.at(name)));
  };
  const auto of_factory = [](const auto& factory) -> const FieldTable& { return factory.fields(); };
  add(kinds.models, [](const auto& kind) -> const FieldTable& { return kind->fields(); });
  add(kinds.datasets, of_factory);
  add(kinds.tasks, [](const TaskKind& kind) -> const FieldTable& { return kind.make.fields(); });
  add(kinds.optimizers, of_factory);
  add(kinds.lr_schedules, of_factory);
  return tables;
}

const Table* RunConfig::plugin_table(const std::string& name) const {
  const Table* plugins = root.table("plugin");
  return plugins == nullptr ? nullptr : plugins->table(name);
}

RunConfig from_table(Table root, Kinds kinds) {
  RunConfig config;
  config.root = std::move(root);
  config.kinds = std::move(kinds);
  config.auto_micro_batch = config.root.value<std::string>("train", "micro_batch") == kAuto;
  if (config.auto_micro_batch) config.root.tables["train"].entries.erase("micro_batch");
  check_sections(config.root, Reader(config).all());
  config.run = Reader(config).whole_section(run_fields());
  config::with_location(config.root, [&] { load_extensions(config.run.extensions, config.kinds); });
  const Reader reader(config);
  config.comm = reader.whole_section(comm_fields());
  if (!config.kinds.models.names().empty())
    config.model = reader.model_section(config.model_keys);
  else
    config.model_keys = section_of(config.root, "model");
  if (config.root.table("lora") != nullptr) config.lora = reader.whole_section(lora_fields());
  if (config.root.table("data") != nullptr) require_data(config);
  config.train = reader.train_section(config.task_keys);
  config.optimizer = reader.optimizer_section();
  if (config.lora && !config.optimizer.freeze.empty())
    fail(config.root.table("optimizer"), "freeze",
         "conflicts with [lora], which freezes all weights but the adapters and the modules of lora.train; remove it");
  config.schedule = reader.open_section(schedule_section_fields(), config.kinds.lr_schedules, &ScheduleSection::curve);
  config.optimize = reader.whole_section(tune::tune_fields());
  for (const auto& [key, names] :
       {std::pair{"candidates", &config.optimize.candidates}, std::pair{"choices", &config.optimize.choices}})
    if (const auto problem = tune::problem_of_candidates(*names, config.kinds.switches.names()); !problem.empty())
      fail(config.root.table("optimize"), key, problem);
  config.parallel = reader.whole_section(parallel_fields());
  const auto parallel = section_of(config.root, "parallel");
  const bool divides = std::any_of(parallel.entries.begin(), parallel.entries.end(),
                                   [](const auto& entry) { return entry.first != "dp"; });
  if (parallel.find("plugin") == nullptr && divides) config.parallel.plugin = "hybrid_parallel";
  check_plugin(config.root, config.parallel.plugin);
  if (config.train.task) static_cast<void>(select_task(config, *config.train.task));
  for (const auto& [key, value] :
       {std::pair{"on_nonfinite", config.train.on_nonfinite}, std::pair{"on_loss_spike", config.train.on_loss_spike}})
    if (value == "rollback" && config.run.keep_checkpoints == 0)
      fail(config.root.table("train"), key,
           "returns to a checkpoint, but run.keep_checkpoints = 0 keeps none; set it to 1 or more");
  return config;
}

void require_data(RunConfig& config) {
  if (config.data.source) return;
  config.data = Reader(config).data_section();
}

TaskKind select_task(const RunConfig& config, const std::string& name) {
  TaskKind kind;
  try {
    kind = config.kinds.tasks.at(name);
  } catch (const ConfigError& error) {
    const auto section = section_of(config.root, "train");
    fail(&section, "task", error.what());
  }
  config::read_own(config.task_keys, kind.make.fields(), Reader(config).own_of("train"), kind.make.options());
  return kind;
}

std::string print(const RunConfig& config, const TaskKind* task, const std::string& model_rows,
                  const std::string& plugin_section) {
  const auto as_written = [](Table rows) {
    rows.path.clear();
    return config::print_table(rows);
  };
  const auto rows_of = [](const auto& factory) { return config::print_rows(factory.fields(), factory.options()); };
  std::string out = config::print_section(run_fields(), &config.run);
  out += "\n" + config::print_section(model_fields(), &config.model) +
         (model_rows.empty() ? as_written(config.model_keys) : model_rows);
  if (config.lora) out += "\n" + config::print_section(lora_fields(), &*config.lora);
  out += "\n" + config::print_section(data_fields(), &config.data) + rows_of(config.data.source);
  for (const auto& part : config.data.mix)
    out += "\n" + config::print_section(mix_fields(), &part) + rows_of(part.source);
  out += "\n" + config::print_section(train_section_fields(), &config.train) +
         (task == nullptr ? as_written(config.task_keys) : rows_of(task->make));
  out += "\n" + config::print_section(optimizer_section_fields(), &config.optimizer) + rows_of(config.optimizer.method);
  out += optim::print_groups(config.optimizer);
  out += "\n" + config::print_section(schedule_section_fields(), &config.schedule) + rows_of(config.schedule.curve);
  out += "\n" + config::print_section(tune::tune_fields(), &config.optimize);
  out += "\n" + config::print_section(comm_fields(), &config.comm);
  out += "\n" + config::print_section(parallel_fields(), &config.parallel);
  return out + "\n" + plugin_section;
}

}  // namespace trireme::train
