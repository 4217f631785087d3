#include "core/setup/loaded_weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/checkpoint/weights/hub_cache.h"
#include "core/checkpoint/weights/weights.h"
#include "core/checkpoint/weights/weights_source.h"

namespace trireme::train {
namespace {

using nlohmann::json;

/// Whether a value of a configuration turns something on.
bool turns_on(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null() || *found == false) return false;
  return !found->is_structured() || !found->empty();
}

/// The rank or the alpha of adapters, in the bounds of the key of [lora]. @throws CheckpointError
template <class T>
T number_in(const json& config, const char* name, const char* key, const std::string& file) {
  const auto& bounds = lora_fields().find(key)->rules;
  const auto stored = config.value(name, json());
  const auto number = read_number<T>(stored, bounds);
  if (!number)
    throw CheckpointError(fmt::format("{}: {} is {}; it must be {}", file, name,
                                      stored.is_null() ? "missing" : stored.dump(), number_text<T>(bounds)));
  return *number;
}

/// PEFT's configuration of these adapters. @throws CheckpointError for a kind that is not supported
json read_adapter_config(const std::string& adapters) {
  const auto file = checkpoint::beside_weights(adapters, checkpoint::kAdapterConfig);
  const auto config = checkpoint::read_beside_weights(adapters, checkpoint::kAdapterConfig);
  if (!config.is_object())
    throw CheckpointError(fmt::format(
        "{}: there is none, so the rank and alpha of the adapters beside it are not known; copy it there", file));
  if (const auto type = config.value("peft_type", json()); type != "LORA")
    throw CheckpointError(fmt::format("{}: peft_type is {}; only \"LORA\" is supported", file, type.dump()));
  if (const auto bias = config.value("bias", json("none")); bias != "none")
    throw CheckpointError(fmt::format("{}: bias is {}; only \"none\" is supported", file, bias.dump()));
  for (const char* key :
       {"use_dora", "use_rslora", "use_qalora", "use_bdlora", "lora_bias", "rank_pattern", "alpha_pattern",
        "layer_replication", "target_parameters", "trainable_token_indices", "alora_invocation_tokens", "arrow_config"})
    if (turns_on(config, key))
      throw CheckpointError(fmt::format("{}: {} is {}, which is not supported", file, key, config.at(key).dump()));
  return config;
}

std::vector<std::string> names_in(const json& config, const char* key, const std::string& file) {
  const auto value = config.value(key, json());
  if (value == "all-linear") return {"all-linear"};
  const bool are_names =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const auto& name) { return name.is_string(); });
  if (!value.is_null() && !are_names)
    throw CheckpointError(
        fmt::format("{}: {} is {}, not a list of names; write [lora] with its target and train into the configuration",
                    file, key, value.dump()));
  return are_names ? value.get<std::vector<std::string>>() : std::vector<std::string>{};
}

/// The section [lora] for adapters that another program has trained. @throws CheckpointError
LoraSection section_for(const json& config, const std::string& adapters) {
  const auto file = checkpoint::beside_weights(adapters, checkpoint::kAdapterConfig);
  for (const char* key : {"layers_to_transform", "exclude_modules"})
    if (turns_on(config, key))
      throw CheckpointError(
          fmt::format("{}: {} is {}; write [lora] with the target's full names into the configuration", file, key,
                      config.at(key).dump()));
  LoraSection lora;
  lora.rank = number_in<std::int64_t>(config, "r", "rank", file);
  lora.alpha = number_in<double>(config, "lora_alpha", "alpha", file);
  lora.target = names_in(config, "target_modules", file);
  lora.train = names_in(config, "modules_to_save", file);
  // PEFT adds the names of any classifier's head, which the model may lack.
  const auto stored = checkpoint::WeightsSource(adapters).names();
  std::erase_if(*lora.train, [&](const std::string& module) {
    return std::none_of(stored.begin(), stored.end(),
                        [&](const auto& name) { return name.find("." + module + ".") != std::string::npos; });
  });
  return lora;
}

/// Checks [lora] against the adapters to load. @throws ConfigError, CheckpointError
void check_same(const config::Table& root, const LoraSection& lora, const json& stored, const std::string& adapters) {
  const auto file = checkpoint::beside_weights(adapters, checkpoint::kAdapterConfig);
  const auto differs = [&](const char* key, double here, double there) {
    if (here != there)
      config::fail(root.table("lora"), key,
                   fmt::format("is {}, but the adapters of {} have {}; set it to {}", here, adapters, there, there));
  };
  differs("rank", static_cast<double>(lora.rank),
          static_cast<double>(number_in<std::int64_t>(stored, "r", "rank", file)));
  differs("alpha", lora.alpha, number_in<double>(stored, "lora_alpha", "alpha", file));
}

/// Only merged weights are in the files and the dtype of an export. @throws ConfigError
void check_export(const RunConfig& config) {
  const auto& run = config.run;
  for (const auto& [key, set] :
       {std::pair{"export_shard_mb", run.export_shard_mb > 0}, {"export_dtype", run.export_dtype.has_value()}})
    if (set && !config.lora->merge)
      config::fail(
          config.root.table("run"), key,
          "has no effect on adapters, which are small; remove it, or set lora.merge to export the merged model");
}

/// The adapters that a training starts from; "" if it starts from none. @throws ConfigError
std::string adapters_to_train(const RunConfig& config, const std::string& weights) {
  if (!weights.empty() && !checkpoint::find_adapters_alone(weights).empty())
    throw ConfigError(
        fmt::format("model.weights: {} holds adapters, which are no weights; name the model that they adapt here, and "
                    "the adapters in lora.weights",
                    weights));
  if (!config.lora) return "";
  check_export(config);
  if (weights.empty())
    throw ConfigError("model.weights: is empty, but [lora] adapts a trained model; name its weights, or remove [lora]");
  if (config.lora->weights.empty()) return "";
  auto adapters = checkpoint::find_adapters(config.lora->weights);
  if (adapters.empty())
    throw ConfigError(fmt::format("lora.weights: no adapters in {}; name a folder with {}", config.lora->weights,
                                  checkpoint::kAdapterTensors));
  return adapters;
}

/// The model that evaluated adapters adapt. @throws ConfigError
std::string base_of(const RunConfig& config, const json& stored, const std::string& adapters) {
  if (!config.model.weights.empty()) return config.model.weights;
  const auto base = stored.value("base_model_name_or_path", json());
  if (base.is_string() && !base.get<std::string>().empty()) return base.get<std::string>();
  throw ConfigError(
      fmt::format("{}: names no base_model_name_or_path; set model.weights to the model that these adapters adapt",
                  checkpoint::beside_weights(adapters, checkpoint::kAdapterConfig)));
}

}  // namespace

StoredConfig read_stored_config(const std::string& weights, const std::string& name) {
  if (weights.empty()) return {};
  StoredConfig out{.path = checkpoint::beside_weights(weights, name)};
  if (auto content = checkpoint::read_beside_weights(weights, name); !content.is_null())
    out.content = std::make_shared<const json>(std::move(content));
  return out;
}

bool StoredConfig::describes_model() const {
  const auto is_of_labels = [](const auto& item) { return item.key() == "id2label" || item.key() == "label2id"; };
  if (!content) return false;
  const auto items = content->items();
  return content->empty() || !std::all_of(items.begin(), items.end(), is_of_labels);
}

json StoredConfig::value(const char* key) const { return content ? content->value(key, json()) : json(); }

std::vector<std::string> StoredConfig::labels() const {
  std::vector<std::string> names;
  const auto labels = value("id2label");
  if (labels.is_null()) return names;
  const auto refuse = [&] {
    throw CheckpointError(
        fmt::format("{}: id2label is {}; it must be an object with the names of the labels, by their numbers from 0",
                    path, labels.dump()));
  };
  if (!labels.is_object()) refuse();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto found = labels.find(std::to_string(i));
    if (found == labels.end()) refuse();
    if (!found->is_string())
      throw CheckpointError(fmt::format("{}: the name of label {} in id2label is not a string", path, i));
    names.push_back(found->get<std::string>());
  }
  return names;
}

LoadedWeights find_loaded_weights(const RunConfig& config, const std::string& given) {
  const bool trains = given.empty();
  LoadedWeights out{.base = trains ? config.model.weights : given, .lora = config.lora};
  out.path = checkpoint::locate_weights(out.base);
  out.adapters = trains ? adapters_to_train(config, out.path) : checkpoint::find_adapters_alone(out.path);
  if (!out.adapters.empty()) {
    const auto stored = read_adapter_config(out.adapters);
    if (!out.lora) out.lora = section_for(stored, out.adapters);
    check_same(config.root, *out.lora, stored, out.adapters);
    if (!trains) out.base = base_of(config, stored, out.adapters);
    if (!trains) out.path = checkpoint::locate_weights(out.base);
  }
  out.config = read_stored_config(out.path, checkpoint::kModelConfig);
  out.adapted_config = read_stored_config(out.adapters, kAdaptedModelConfig);
  return out;
}

const StoredConfig& config_of_classes(const LoadedWeights& weights, const std::string& head_prefix) {
  if (weights.adapters.empty()) return weights.config;
  if (weights.adapted_config.content) return weights.adapted_config;
  const auto names = checkpoint::WeightsSource(weights.adapters).names();
  const bool has_head = !head_prefix.empty() && std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.find("." + head_prefix) != std::string::npos && name.find(".lora_") == std::string::npos;
  });
  return has_head ? weights.adapted_config : weights.config;
}

}  // namespace trireme::train
