#include "core/train/lora.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/adapters.h"
#include "core/checkpoint/hub_cache.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/weights_source.h"
#include "core/nn/block.h"
#include "core/nn/lora.h"
#include "core/train/pretrained.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
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
void check_same(const Prepared& p, const json& config) {
  const auto& lora = *p.config.lora;
  const auto* section = p.config.root.table("lora");
  const auto file = checkpoint::beside_weights(p.adapters, checkpoint::kAdapterConfig);
  const auto differs = [&](const char* key, double here, double there) {
    if (here != there)
      config::fail(section, key,
                   fmt::format("is {}, but the adapters of {} have {}; set it to {}", here, p.adapters, there, there));
  };
  differs("rank", static_cast<double>(lora.rank),
          static_cast<double>(number_in<std::int64_t>(config, "r", "rank", file)));
  differs("alpha", lora.alpha, number_in<double>(config, "lora_alpha", "alpha", file));
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

/// The base model as PEFT looks for it: a name on the Hub, or a folder.
std::string base_model(const Prepared& p) {
  if (p.weights != p.config.model.weights) return p.config.model.weights;  // a name that was found in the cache
  const auto file = fs::absolute(checkpoint::find_weights(p.weights)).lexically_normal();
  const auto name = file.filename().string();
  return (name.starts_with("model.") || name == checkpoint::kManifest || name.starts_with("pytorch_model.")
              ? file.parent_path()
              : file)
      .string();
}

json task_type(const json& architectures) {
  const auto name = architectures.is_array() && !architectures.empty() ? architectures[0].get<std::string>() : "";
  for (const auto& [end, type] : {std::pair{"ForSequenceClassification", "SEQ_CLS"},
                                  {"ForTokenClassification", "TOKEN_CLS"},
                                  {"ForCausalLM", "CAUSAL_LM"},
                                  {"LMHeadModel", "CAUSAL_LM"}})
    if (name.ends_with(end)) return type;
  return nullptr;
}

/// The targets as PEFT can read them: names, or the paths that a pattern has matched.
std::vector<std::string> target_modules(const LoraSection& lora, nn::Model& model) {
  const bool are_names = std::none_of(lora.target.begin(), lora.target.end(), [](const auto& target) {
    return target == "all-linear" || target.find('*') != std::string::npos;
  });
  if (are_names) return lora.target;
  std::vector<std::string> paths;
  for (const auto* layer : nn::adapted_layers(model)) paths.push_back(layer->path());
  return paths;
}

json adapter_config(const Prepared& p, nn::Model& model) {
  const auto& lora = *p.config.lora;
  const auto saved = nn::saved_modules(model, lora.loaded).paths;
  const auto layers = nn::adapted_layers(model);
  const bool transposed =
      std::any_of(layers.begin(), layers.end(), [](const auto* layer) { return layer->options().stored_transposed; });
  const bool whole = lora.alpha == std::floor(lora.alpha);
  return {{"peft_type", "LORA"},
          {"task_type", task_type(p.kind->to_hf(p.model_options.get()).value("architectures", json()))},
          {"base_model_name_or_path", base_model(p)},
          {"inference_mode", true},
          {"r", lora.rank},
          {"lora_alpha", whole ? json(static_cast<std::int64_t>(lora.alpha)) : json(lora.alpha)},
          {"lora_dropout", lora.dropout},
          {"target_modules", target_modules(lora, model)},
          {"modules_to_save", saved.empty() ? json() : json(saved)},
          {"bias", "none"},
          {"fan_in_fan_out", transposed},
          {"init_lora_weights", true},
          {"use_rslora", false},
          {"use_dora", false}};
}

}  // namespace

void locate_all_weights(Prepared& p, const std::string& given) {
  auto& config = p.config;
  p.weights = checkpoint::locate_weights(given.empty() ? config.model.weights : given);
  const auto adapters = p.weights.empty() ? std::string() : checkpoint::find_adapters_alone(p.weights);
  const bool are_adapters = !adapters.empty();
  if (given.empty()) {
    if (are_adapters)
      throw ConfigError(
          fmt::format("model.weights: {} holds adapters, which are no weights; name the model that they "
                      "adapt here, and the adapters in lora.weights",
                      p.weights));
    if (!config.lora) return;
    check_export(config);
    if (p.weights.empty())
      throw ConfigError(
          "model.weights: is empty, but [lora] adapts a trained model; name its weights, or remove [lora]");
    if (config.lora->weights.empty()) return;
    p.adapters = checkpoint::find_adapters(config.lora->weights);
    if (p.adapters.empty())
      throw ConfigError(fmt::format("lora.weights: no adapters in {}; name a folder with {}", config.lora->weights,
                                    checkpoint::kAdapterTensors));
  } else {
    if (!are_adapters) return;
    p.adapters = adapters;
  }
  const auto stored = read_adapter_config(p.adapters);
  if (!config.lora) config.lora = section_for(stored, p.adapters);
  check_same(p, stored);
  if (given.empty()) return;
  if (config.model.weights.empty()) {
    const auto base = stored.value("base_model_name_or_path", json());
    if (!base.is_string() || base.get<std::string>().empty())
      throw ConfigError(
          fmt::format("{}: names no base_model_name_or_path; set model.weights to the model that these adapters adapt",
                      checkpoint::beside_weights(p.adapters, checkpoint::kAdapterConfig)));
    config.model.weights = base.get<std::string>();
  }
  p.weights = checkpoint::locate_weights(config.model.weights);
}

void add_adapters(nn::Model& model, const LoraSection& lora, const std::string& head_prefix, const nn::Policy& policy) {
  nn::LoraOptions options = lora;
  for (const auto& row : policy.tensor)
    if (row.role == nn::TensorRole::classifier_head) options.heads.push_back(row.layer);
  const auto parameters = model.named_parameters();
  const auto in_head = [&](const auto& item) { return item.key().starts_with(head_prefix); };
  if (!head_prefix.empty() && std::any_of(parameters.begin(), parameters.end(), in_head)) {
    const auto head = head_prefix.substr(0, head_prefix.size() - 1);
    if (!options.train) options.train = {head};  // as in PEFT: it is new in most fine-tunings
    options.heads.push_back(head);
  }
  nn::add_lora(model, options);
}

std::map<std::string, std::string> adapter_options(const LoraSection& lora) {
  std::map<std::string, std::string> out;
  for (const auto& field : lora_fields().fields)
    if (field.key != "weights" && field.key != "merge") out["lora." + field.key] = config::to_toml(field.get(&lora));
  return out;
}

std::map<std::string, std::string> exported_texts(const Prepared& p, std::optional<at::ScalarType> dtype) {
  if (!p.config.lora) return model_texts(p, dtype);
  auto texts = model_texts(p);
  texts[kAdaptedModelConfig] = texts.extract(checkpoint::kModelConfig).mapped();
  texts[checkpoint::kAdapterConfig] = json_text(adapter_config(p, *model_source(p).model), 2) + "\n";
  return texts;
}

std::string adapters_line(const LoraSection& lora, nn::Model& model) {
  const auto layers = nn::adapted_layers(model);
  const auto trained = nn::trained_modules(model);
  return fmt::format("r {}, alpha {}{} on {}: {}{}", lora.rank, lora.alpha,
                     lora.dropout > 0 ? fmt::format(", dropout {}", lora.dropout) : "",
                     text::quantity(static_cast<std::int64_t>(layers.size()), "layer"),
                     text::join(nn::last_parts(layers)),
                     trained.empty() ? "" : fmt::format("; trained in full: {}", text::first_few(trained)));
}

}  // namespace trireme::train
