#include "core/setup/export_texts.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/tokenizer_file_names.h"
#include "core/booster/precision.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/weights/adapters.h"
#include "core/checkpoint/weights/weights.h"
#include "core/checkpoint/weights/weights_source.h"
#include "core/nn/block.h"
#include "core/nn/layers/lora.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The base model as PEFT looks for it: a name on the Hub, or a folder.
std::string base_model(const LoadedWeights& weights) {
  if (weights.path != weights.base) return weights.base;  // a name that was found in the cache
  const auto file = fs::absolute(checkpoint::find_weights(weights.path)).lexically_normal();
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

/// The targets as PEFT can read them: names, or the paths that a pattern has matched, and those of layers that
/// transformers' modules call otherwise.
std::vector<std::string> target_modules(const LoraSection& lora, nn::Model& model) {
  bool are_names = std::none_of(lora.target.begin(), lora.target.end(), [](const auto& target) {
    return target == "all-linear" || target.find('*') != std::string::npos;
  });
  std::vector<std::string> paths;
  for (const auto* layer : nn::adapted_layers(model)) {
    paths.push_back(model.module_in_modules(layer->path()));
    are_names = are_names && paths.back() == layer->path();
  }
  return are_names ? lora.target : paths;
}

json adapter_config(const RunSetup& setup, nn::Model& model) {
  const auto& lora = *setup.weights.lora;
  auto saved = nn::saved_modules(model, lora.loaded).paths;
  for (auto& path : saved) path = model.module_in_modules(path);
  const auto layers = nn::adapted_layers(model);
  const bool transposed =
      std::any_of(layers.begin(), layers.end(), [](const auto* layer) { return layer->options().stored_transposed; });
  const bool whole = lora.alpha == std::floor(lora.alpha);
  return {{"peft_type", "LORA"},
          {"task_type", task_type(setup.model.kind->to_hf(setup.model.options.get()).value("architectures", json()))},
          {"base_model_name_or_path", base_model(setup.weights)},
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

constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kEndId = "eos_token_id";

/// Whether the model continues texts, so that the ids of special tokens matter to whoever runs it.
bool generates(const ChosenTask& task) { return task.kind.name() == "causal_lm"; }

/// Keys of a config.json that speak of the classes of the weights' own task.
constexpr const char* kOfLabels[] = {"id2label",    "label2id",           "num_labels",    "finetuning_task",
                                     "label_names", "label_descriptions", "pretrained_cfg"};
/// Keys about files that an export does not have: a model's own code, and quantized tensors.
constexpr const char* kOfFiles[] = {"auto_map", "quantization_config"};

/// What stays of the loaded config.json where `written` says nothing else; empty if there is none in the format of
/// `written`.
json kept_config(const StoredConfig& stored, const json& written) {
  if (!stored.describes_model() || stored.value("model_type") != written.value("model_type", json()))
    return json::object();
  auto kept = *stored.content;
  if (written.contains("id2label") || stored.value("architectures") != written.value("architectures", json()))
    for (const auto* key : kOfLabels) kept.erase(key);
  for (const auto* key : kOfFiles) kept.erase(key);
  return kept;
}

/// The keys of a config.json; null: there is no such token.
json ids_of(const nn::TokenIds& tokens) {
  const auto id = [](const std::optional<std::int64_t>& token) { return token ? json(*token) : json(); };
  return {{"bos_token_id", id(tokens.begin)}, {kEndId, id(tokens.end)}, {"pad_token_id", id(tokens.padding)}};
}

/// A token's id, or several; empty if the key is missing or null. @throws CheckpointError
std::vector<std::int64_t> stored_ids(const StoredConfig& stored, const char* key) {
  const auto found = stored.value(key);
  if (found.is_null()) return {};
  const auto list = found.is_array() ? found : json::array({found});
  if (!std::all_of(list.begin(), list.end(), [](const auto& id) { return id.is_number_integer(); }))
    throw CheckpointError(
        fmt::format("{}: {} is {}; it must be a token's id, or a list of ids", stored.path, key, found.dump()));
  return list.get<std::vector<std::int64_t>>();
}

}  // namespace

std::map<std::string, std::string> files_to_keep(const LoadedWeights& weights, const ChosenTask& task,
                                                 const nn::DataSpec& data) {
  std::map<std::string, std::string> kept;
  if (weights.path.empty()) return kept;
  const auto keep = [&](const char* name) {
    const auto path = checkpoint::beside_weights(weights.path, name);
    if (std::filesystem::exists(path)) kept[name] = read_file(path);
  };
  if (generates(task) && read_stored_config(weights.path, kGenerationConfig).content) keep(kGenerationConfig);
  if (data.tokens) return kept;  // another tokenizer's files may not be mixed with these
  for (const auto* name : kTokenizerFiles) keep(name);
  return kept;
}

void set_dtype(json& config, at::ScalarType dtype) {
  const auto name = c10::getDtypeNames(dtype).first;
  config["dtype"] = name;
  if (config.contains("torch_dtype")) config["torch_dtype"] = name;
}

std::vector<std::int64_t> end_ids(const LoadedWeights& weights) {
  for (const auto& [path, config] :
       {std::pair{&weights.adapters, &weights.adapted_config}, std::pair{&weights.path, &weights.config}}) {
    if (path->empty()) continue;
    for (const auto& stored : {read_stored_config(*path, kGenerationConfig), *config})
      if (auto ids = stored_ids(stored, kEndId); !ids.empty()) return ids;
  }
  return {};
}

std::map<std::string, std::string> model_texts(const RunSetup& setup, std::optional<at::ScalarType> dtype) {
  const auto& [kind, options, source] = setup.model;
  auto texts = setup.data.info.files;
  if (!kind) return texts;  // a program's model has no config.json
  texts.insert(setup.kept_files.begin(), setup.kept_files.end());
  const auto written = kind->to_hf(options.get());
  auto config = kept_config(setup.weights.config, written);
  const bool is_new = config.empty();
  config.update(written);
  if (const auto found = texts.find(checkpoint::kPreprocessorConfig); found != texts.end())
    kind->add_preparation(config, parse_json(found->second));
  if (const auto problem = config.find("problem_type");
      problem != config.end() && *problem != setup.task.kind.problem_type)
    config.erase(problem);
  if (const auto problem = setup.task.made->problem_type(); !problem.empty()) config["problem_type"] = problem;
  if (is_new && generates(setup.task)) {
    const auto ids = ids_of(setup.data.info.spec.tokens.value_or(nn::TokenIds{}));
    // Without a key transformers takes the ids of its published model: null says that there is no such token.
    for (const auto& [key, id] : ids.items())
      if (config.value(key, json()).is_null()) config[key] = id;
    auto generation = ids;
    for (const auto& [key, id] : ids.items())
      if (id.is_null()) generation.erase(key);
    if (!generation.empty()) texts[kGenerationConfig] = json_text(generation, 2) + "\n";
  }
  set_dtype(config, dtype.value_or(Precision::parse(setup.config.train.precision).parameters));
  texts[checkpoint::kModelConfig] = json_text(config, 2) + "\n";
  return texts;
}

std::map<std::string, std::string> exported_texts(const RunSetup& setup, std::optional<at::ScalarType> dtype) {
  if (!setup.weights.lora) return model_texts(setup, dtype);
  auto texts = model_texts(setup);
  texts[kAdaptedModelConfig] = texts.extract(checkpoint::kModelConfig).mapped();
  texts[checkpoint::kAdapterConfig] = json_text(adapter_config(setup, *setup.model.source().model), 2) + "\n";
  return texts;
}

}  // namespace trireme::train
