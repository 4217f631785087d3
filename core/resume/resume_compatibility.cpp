#include "core/resume/resume_compatibility.h"

#include <fmt/format.h>

#include <set>

namespace trireme::train {
namespace {

enum class Rule { free, warn, refused };

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

void compare(const Section& section, const config::Table* now, const config::Table* before, Differences& out) {
  std::set<std::string> keys;
  for (const auto* table : {now, before})
    if (table != nullptr)
      for (const auto& [key, entry] : table->entries) keys.insert(key);
  for (const auto& key : keys) {
    const auto found = section.keys.find(key);
    const auto rule = found == section.keys.end() ? section.rest : found->second;
    const auto current = value_of(now, key), there = value_of(before, key);
    if (rule == Rule::free || current == there) continue;
    // A key that only one of them has follows from another key, such as a size preset, which is compared itself.
    if (rule == Rule::refused && (current.empty() || there.empty())) continue;
    (rule == Rule::refused ? out.refused : out.reported)
        .push_back(fmt::format("{}.{} = {} (it was {})", section.name, key, current.empty() ? "unset" : current,
                               there.empty() ? "unset" : there));
  }
  const auto groups_of = [](const config::Table* table) {
    config::Table groups;
    if (table != nullptr) groups.arrays = table->arrays;
    return config::print_table(groups);
  };
  if (groups_of(now) != groups_of(before)) out.reported.push_back(fmt::format("[[{}.group]]", section.name));
}

}  // namespace

Differences differences(const config::Table& now, const config::Table& before) {
  Differences out;
  for (const auto& section : rules()) compare(section, now.table(section.name), before.table(section.name), out);
  return out;
}

}  // namespace trireme::train
