#include "core/resume/same_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/config/table.h"
#include "core/data/class_names.h"

namespace trireme::train {
namespace {

constexpr const char* kDigest = "the training data (a digest)";
constexpr const char* kOldDigest = "names of the training images (a digest)";  // its name in older versions' records

/// The changes of options in a resumed run.
struct Differences {
  std::vector<std::string> refused, reported;  ///< "train.global_batch = 16 (it was 8)"
};

/// `refused_unless_same`: also where only one run has the key. Other keys that only one has follow from others, such as
/// a size preset, which are compared themselves, or are of another version.
enum class Rule { free, warn, refused, refused_unless_same };

struct Section {
  const char* name;
  Rule rest;  ///< for keys that are not listed
  std::map<std::string, Rule> keys;
};

const std::vector<Section>& rules() {
  static const std::vector<Section> all{
      {"run", Rule::free, {{"seed", Rule::refused}}},
      {"model", Rule::refused, {{"weights", Rule::warn}}},
      {"lora", Rule::refused, {{"dropout", Rule::warn}, {"merge", Rule::free}}},
      {"data",
       Rule::refused,
       {{"path", Rule::free},  // what the files hold is compared by their digest
        {"train", Rule::free},
        {"validation", Rule::free},
        {"test", Rule::free},
        {"tokenizer", Rule::free},  // the digest is of the tokens
        {"workers", Rule::free},
        {"prefetch", Rule::free},
        {"shard_data", Rule::free},
        {"dispatch", Rule::free},
        {"cache_mb", Rule::free},
        {"shard_cache_gb", Rule::free},
        {"max_pixels", Rule::warn},
        {"balance_classes", Rule::refused_unless_same},
        {"resize_shorter", Rule::refused_unless_same},
        {"background", Rule::refused_unless_same},
        {"on_bad_sample", Rule::warn}}},
      {"train",
       Rule::warn,
       {{"global_batch", Rule::refused},
        {"shuffle", Rule::refused},
        {"drop_last", Rule::refused},
        {"micro_batch", Rule::free},
        {"eval_batch", Rule::free},
        {"eval_every", Rule::free},
        {"patience", Rule::free},
        {"on_nonfinite", Rule::free},  // the steps that are left out are part of a checkpoint
        {"max_nonfinite", Rule::free},
        {"loss_spike", Rule::free},
        {"on_loss_spike", Rule::free},
        {"on_oom", Rule::free},
        {"recompute", Rule::free},
        {"recompute_ratio", Rule::free},
        {"recompute_layers_per_stage", Rule::free},
        {"recompute_modules", Rule::free},
        {"offload_activations", Rule::free},
        {"enable_all_optimization", Rule::free},
        {"enable_flash_attention", Rule::free},
        {"attention_kernel", Rule::free},
        {"enable_fused_normalization", Rule::free},
        {"enable_jit_fused", Rule::free},
        {"topk", Rule::free},
        {"task", Rule::refused},
        {"max_seconds", Rule::free}}},
      {"optimizer", Rule::warn, {{"name", Rule::refused}, {"freeze", Rule::refused}}},
      {"schedule", Rule::warn, {}},
  };
  return all;
}

std::string value_of(const config::Table* section, const std::string& key) {
  const auto* entry = section == nullptr ? nullptr : section->find(key);
  return entry == nullptr ? "" : config::to_toml(entry->value);
}

/// `name`: of the section, for messages.
void compare(const Section& section, const std::string& name, const config::Table* now, const config::Table* before,
             Differences& out) {
  std::set<std::string> keys;
  for (const auto* table : {now, before})
    if (table != nullptr)
      for (const auto& [key, entry] : table->entries) keys.insert(key);
  for (const auto& key : keys) {
    const auto found = section.keys.find(key);
    const auto rule = found == section.keys.end() ? section.rest : found->second;
    const auto current = value_of(now, key), there = value_of(before, key);
    if (rule == Rule::free || current == there) continue;
    if (rule == Rule::refused && (current.empty() || there.empty())) continue;
    (rule == Rule::warn ? out.reported : out.refused)
        .push_back(fmt::format("{}.{} = {} (it was {})", name, key, current.empty() ? "unset" : current,
                               there.empty() ? "unset" : there));
  }
}

using Tables = std::vector<config::Table>;
const Tables& repeated(const config::Table& root, const char* section, const char* name) {
  static const Tables none;
  const auto* table = root.table(section);
  return table == nullptr || !table->arrays.contains(name) ? none : table->arrays.at(name);
}

/// [[optimizer.group]] may change; each [[data.mix]] is compared as [data] is.
void compare_repeated(const Section& data, const config::Table& now, const config::Table& before, Differences& out) {
  const auto printed = [](const config::Table& root) {
    config::Table of;
    of.arrays = {{"optimizer.group", repeated(root, "optimizer", "group")}};
    return config::print_table(of);
  };
  if (printed(now) != printed(before)) out.reported.emplace_back("[[optimizer.group]]");
  const auto &mix = repeated(now, "data", "mix"), &there = repeated(before, "data", "mix");
  if (mix.size() != there.size())
    out.refused.push_back(fmt::format("{} sections [[data.mix]] (there were {})", mix.size(), there.size()));
  else
    for (std::size_t i = 0; i < mix.size(); ++i)
      compare(data, fmt::format("data.mix[{}]", i + 1), &mix[i], &there[i], out);
}

/// Compares two resolved configurations: the run's own and the one in a checkpoint.
Differences differences(const config::Table& now, const config::Table& before) {
  Differences out;
  for (const auto& section : rules()) {
    compare(section, section.name, now.table(section.name), before.table(section.name), out);
    if (section.name == std::string_view("data")) compare_repeated(section, now, before, out);
  }
  return out;
}

/// The precision in which a run updates and stores its weights, according to its resolved configuration, and the keys
/// that determine it.
std::pair<std::string, std::string> updated_in(const config::Table& run) {
  const auto precision = std::get<std::string>(run.table("train")->find("precision")->value);
  auto keys = fmt::format("train.precision = \"{}\"", precision);
  if (precision == "fp64") return {precision, keys};
  if (precision == "fp32" || precision == "tf32") return {"fp32", keys};
  // Half precision has fp32 master weights unless the plugin's options disable them.
  if (const auto* plugins = run.table("plugin"))
    for (const auto& [name, section] : plugins->tables)
      if (const auto* masters = section.find("master_weights")) {
        keys += fmt::format(", {}.master_weights = {}", section.path, config::to_toml(masters->value));
        if (masters->value == FieldValue(false)) return {precision, keys};
      }
  return {"fp32", keys};
}

void check_same_precision(const config::Table& now, const config::Table& before, const std::string& folder) {
  const auto [current, keys] = updated_in(now);
  const auto [there, keys_there] = updated_in(before);
  if (current != there)
    throw CheckpointError(
        fmt::format("{}: holds weights in {} ({}), but this run updates them in {} ({}). Restore that setting, or "
                    "start a new run from its weights: model.weights = \"{}\"",
                    folder, there, keys_there, current, keys, folder));
}

}  // namespace

nlohmann::json data_facts(const RunSetup& setup) {
  const auto& spec = setup.data.info.spec;
  nlohmann::json facts{{"train samples", setup.data.train->size()},
                       {"classes", text::join(spec.class_names)},
                       {kDigest, setup.data.info.digest}};
  for (const auto* tensors : {&spec.inputs, &spec.targets})
    for (const auto& tensor : *tensors) facts["shape of " + tensor.name] = tensor.shape;
  return facts;
}

std::vector<std::string> check_same_training(const RunSetup& setup, const std::string& config_toml,
                                             const checkpoint::Checkpoint& stored) {
  const auto& record = stored.record();
  const auto config = stored.folder() + "/config.toml";
  const auto now = config::parse_text(config_toml, "this run"), earlier = config::parse_text(record.config, config);
  auto found = differences(now, earlier);
  const auto facts = data_facts(setup);
  if (!record.extra.contains("data"))
    throw CheckpointError(
        fmt::format("{}: was saved by a program's own loop, not by a Trainer or `trireme train`; resume it in that "
                    "program, or start a new run from its weights: model.weights = \"{}\"",
                    stored.folder(), stored.folder()));
  auto before = record.extra.at("data");
  if (before.contains("pixels a side")) {  // an older version's record
    const auto side = before["pixels a side"];
    before["shape of pixel_values"] = {3, side, side};
    before["shape of labels"] = nlohmann::json::array();
    before.erase("pixels a side");
  }
  if (before.value("classes", "") == text::join(data::numbered_names(setup.data.info.spec.class_names.size())))
    before["classes"] = facts.at("classes");  // an older version recorded numbers where the weights name the classes
  if (before.contains(kOldDigest)) {
    before[kDigest] = before[kOldDigest];
    before.erase(kOldDigest);
  }
  if (!before.contains(kDigest)) before[kDigest] = facts.at(kDigest);  // an older version did not record it
  auto all = before;
  all.update(facts);
  for (const auto& [what, unused] : all.items()) {
    const auto current = facts.value(what, nlohmann::json()), there = before.value(what, nlohmann::json());
    if (current != there)
      found.refused.push_back(fmt::format("{}: {} (it was {})", what, current.is_null() ? "none" : json_text(current),
                                          there.is_null() ? "none" : json_text(there)));
  }
  if (!found.refused.empty()) {
    // Another model has no use for the weights.
    const bool is_other_model = std::any_of(found.refused.begin(), found.refused.end(),
                                            [](const std::string& key) { return key.starts_with("model."); });
    throw CheckpointError(fmt::format(
        "{}: this run cannot be resumed from it, because {} would change: {}. Restore the old values, or start a new "
        "run (--fresh){}",
        stored.folder(), is_other_model ? "the model" : "the order of the samples or the meaning of a step",
        text::join(found.refused),
        is_other_model ? "" : fmt::format(", from its weights if you want: model.weights = \"{}\"", stored.folder())));
  }
  check_same_precision(now, earlier, stored.folder());
  return found.reported;
}

}  // namespace trireme::train
