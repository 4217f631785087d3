#include "apps/commands/load_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/config_file.h"
#include "core/base/error.h"
#include "core/config/document.h"
#include "core/config/table.h"
#include "core/setup/extension.h"
#include "trireme.h"

namespace trireme::apps {
namespace {

/// The key's new value, if --set gave it one.
const FieldValue* value_from_set(const config::Table& changed, const std::string& section, const std::string& key) {
  const auto* entry = changed.find(section, key);
  return entry == nullptr || !entry->origin.source.starts_with("--set") ? nullptr : &entry->value;
}

bool is_one_of(const FieldValue& value, const std::vector<std::string>& allowed) {
  return std::find(allowed.begin(), allowed.end(), config::plain_text(value)) != allowed.end();
}

}  // namespace

train::Kinds kinds_for(const config::Table& root) {
  auto kinds = builtin_kinds();
  const auto run = config::split_section(config::section_of(root, "run"), train::run_fields()).common;
  config::with_location(root,
                        [&] { train::load_extensions(config::read(&run, train::run_fields()).extensions, kinds); });
  return kinds;
}

/// Brings a file that an earlier version wrote to this version's keys.
static void renew_keys(config::Table& root) {
  const auto run = root.tables.find("run");
  if (run == root.tables.end()) return;
  auto& keys = run->second.entries;
  if (const auto timeout = keys.find("timeout_s"); timeout != keys.end()) {
    auto& comm = root.tables["comm"];
    if (comm.path.empty()) comm.path = "comm";
    comm.entries.try_emplace("timeout_s", timeout->second);
    keys.erase(timeout);
  }
  if (const auto resume = keys.find("resume");
      resume != keys.end() && resume->second.value == FieldValue(std::string()))
    keys.erase(resume);
}

void override_resolved(config::Table& root, const std::vector<std::string>& set) {
  renew_keys(root);
  auto changed = root;
  for (const auto& assignment : set) config::apply_override(changed, assignment);
  const auto kinds = kinds_for(changed);
  const auto own = train::own_tables(kinds);
  const auto drop = [&root](const std::string& section, const std::string& key) {
    if (const auto found = root.tables.find(section); found != root.tables.end()) found->second.entries.erase(key);
  };
  const auto has_key = [&own](const std::string& section, const FieldValue& choice, const std::string& key) {
    return std::any_of(own.begin(), own.end(), [&](const auto* table) {
      return table->section == section && is_one_of(choice, {table->choice}) && table->find(key) != nullptr;
    });
  };
  auto all = train::section_tables();
  all.insert(all.end(), own.begin(), own.end());
  for (const auto* table : all) {
    const auto* choice = table->choice.empty() ? nullptr : value_from_set(changed, table->section, table->choice_key);
    for (const auto& field : table->fields) {
      const auto& only = field.rules.only;
      const auto* governor = only ? value_from_set(changed, table->section, only->key) : nullptr;
      const bool of_another = choice != nullptr && !has_key(table->section, *choice, field.key);
      if (of_another || (governor != nullptr && !is_one_of(*governor, only->values))) drop(table->section, field.key);
    }
  }
  for (const auto& assignment : set) config::apply_override(root, assignment);
}

static train::RunConfig with_kinds(config::Table root, bool runs_commands) {
  auto kinds = builtin_kinds();
  kinds.datasets = datasets::all_datasets(runs_commands);
  return train::from_table(std::move(root), std::move(kinds));
}

/// `resolved`: a run wrote the file.
static train::RunConfig with_overrides(config::Table root, const std::vector<std::string>& set, bool resolved,
                                       bool runs_commands = true) {
  if (resolved)
    override_resolved(root, set);
  else
    for (const auto& assignment : set) config::apply_override(root, assignment);
  return with_kinds(std::move(root), runs_commands);
}

train::RunConfig load_config(const std::string& path, const std::vector<std::string>& set, bool runs_commands) {
  return with_overrides(read_config(path), set, is_resolved(path), runs_commands);
}

train::RunConfig load_with_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout,
                                  bool runs_commands) {
  auto root = table_with_layout(path, set, layout);
  for (const auto& field : train_fields().fields)  // keys that apply to only one precision
    if (field.rules.only && field.rules.only->key == "precision") root.tables["train"].entries.erase(field.key);
  return with_kinds(std::move(root), runs_commands);
}

void drop_layout(config::Table& root) {
  root.tables.erase("parallel");
  root.tables.erase("plugin");
}

train::RunConfig single_process_config(const WeightsArgument& command) {
  auto root = read_config(command.config);
  drop_layout(root);
  return with_overrides(std::move(root), command.set, command.own_config);
}

checkpoint::TrainRecord open_checkpoint(const std::string& folder, checkpoint::Verify how) {
  try {
    return checkpoint::verify_checkpoint_weights(folder, how);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}; name another checkpoint of the run", error.what()));
  }
}

}  // namespace trireme::apps
