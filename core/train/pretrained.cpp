#include "core/train/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/base/tokenizer_file_names.h"
#include "core/booster/precision.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/weights.h"
#include "core/checkpoint/weights_source.h"
#include "core/data/class_names.h"
#include "core/data/relabel.h"
#include "core/train/lora.h"

namespace trireme::train {
namespace {

/// The label names in a stored model's configuration, in order; empty if it has none.
/// @throws CheckpointError, which names the file `path`
std::vector<std::string> stored_labels(const nlohmann::json& stored, const std::string& path) {
  std::vector<std::string> names;
  const auto labels = stored.is_object() ? stored.find("id2label") : stored.end();
  if (labels == stored.end() || labels->is_null()) return names;
  const auto refuse = [&] {
    throw CheckpointError(
        fmt::format("{}: id2label is {}; it must be an object with the names of the labels, by their numbers from 0",
                    path, labels->dump()));
  };
  if (!labels->is_object()) refuse();
  for (std::size_t i = 0; i < labels->size(); ++i) {
    const auto found = labels->find(std::to_string(i));
    if (found == labels->end()) refuse();
    if (!found->is_string())
      throw CheckpointError(fmt::format("{}: the name of label {} in id2label is not a string", path, i));
    names.push_back(found->get<std::string>());
  }
  return names;
}

/// Whether all are names that someone has given; Hugging Face's own are "LABEL_0", ...
bool are_given(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i].empty() || names[i] == fmt::format("LABEL_{}", i)) return false;
  return !names.empty();
}

/// Whether the classes are those of the base model: its adapters, if any, have neither a configuration nor a head.
bool has_classes_of_base(const Prepared& p) {
  if (p.adapters.empty()) return true;
  if (std::filesystem::exists(checkpoint::beside_weights(p.adapters, kAdaptedModelConfig))) return false;
  const auto head = p.kind->head_prefix();
  const auto names = checkpoint::WeightsSource(p.adapters).names();
  return head.empty() || std::none_of(names.begin(), names.end(), [&](const std::string& name) {
           return name.find("." + head) != std::string::npos && name.find(".lora_") == std::string::npos;
         });
}

/// A model's configuration: beside its weights, or beside the adapters that were trained on them.
struct StoredConfig {
  explicit StoredConfig(const Prepared& p) {
    const bool of_base = has_classes_of_base(p);
    const auto& weights = of_base ? p.weights : p.adapters;
    const auto* name = of_base ? checkpoint::kModelConfig : kAdaptedModelConfig;
    path = checkpoint::beside_weights(weights, name);
    config = checkpoint::read_beside_weights(weights, name);
  }
  [[nodiscard]] std::vector<std::string> labels() const { return stored_labels(config, path); }
  std::string path;
  nlohmann::json config;  ///< null when there is none
};

std::string numbered(const std::vector<std::string>& classes) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < classes.size(); ++i) out.push_back(fmt::format("{} {}", i, classes[i]));
  return text::first_few(out);
}

constexpr const char* kGenerationConfig = "generation_config.json";
constexpr const char* kEndId = "eos_token_id";

/// Whether the model continues texts, so that the ids of special tokens matter to whoever runs it.
bool generates(const Prepared& p) { return p.task_kind.name() == "causal_lm"; }

/// Keys of a config.json that speak of the classes of the weights' own task.
constexpr const char* kOfLabels[] = {"id2label",    "label2id",           "num_labels",    "finetuning_task",
                                     "label_names", "label_descriptions", "pretrained_cfg"};
/// Keys about files that an export does not have: a model's own code, and quantized tensors.
constexpr const char* kOfFiles[] = {"auto_map", "quantization_config"};

/// What stays of the loaded config.json where `written` says nothing else; empty if there is none in the format of
/// `written`.
nlohmann::json kept_config(const Prepared& p, const nlohmann::json& written) {
  const auto none = nlohmann::json::object();
  const auto file = p.kept_files.find(checkpoint::kModelConfig);
  if (file == p.kept_files.end()) return none;
  auto stored = parse_json(file->second);
  const auto value = [](const nlohmann::json& config, const char* key) { return config.value(key, nlohmann::json()); };
  if (!stored.is_object() || has_only_labels(stored) || value(stored, "model_type") != value(written, "model_type"))
    return none;
  if (written.contains("id2label") || value(stored, "architectures") != value(written, "architectures"))
    for (const auto* key : kOfLabels) stored.erase(key);
  for (const auto* key : kOfFiles) stored.erase(key);
  return stored;
}

/// The keys of a config.json; null: there is no such token.
nlohmann::json ids_of(const nn::TokenIds& tokens) {
  const auto id = [](const std::optional<std::int64_t>& token) {
    return token ? nlohmann::json(*token) : nlohmann::json();
  };
  return {{"bos_token_id", id(tokens.begin)}, {kEndId, id(tokens.end)}, {"pad_token_id", id(tokens.padding)}};
}

/// A token's id, or several, in the file `path`; empty if the key is missing or null. @throws CheckpointError
std::vector<std::int64_t> stored_ids(const nlohmann::json& config, const char* key, const std::string& path) {
  const auto found = config.is_object() ? config.find(key) : config.end();
  if (found == config.end() || found->is_null()) return {};
  const auto list = found->is_array() ? *found : nlohmann::json::array({*found});
  if (!std::all_of(list.begin(), list.end(), [](const auto& id) { return id.is_number_integer(); }))
    throw CheckpointError(
        fmt::format("{}: {} is {}; it must be a token's id, or a list of ids", path, key, found->dump()));
  return list.get<std::vector<std::int64_t>>();
}

/// What config.json calls the dtype.
const char* torch_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

void adopt_labels(Prepared& p, bool evaluation, const Log& log) {
  if (p.weights.empty()) return;
  const auto names = StoredConfig(p).labels();
  const auto& classes = p.data.info.spec.class_names;
  if (!are_given(names) || classes.empty() || names == classes) return;
  if (const auto alike = data::alike_classes(names);
      alike && std::is_permutation(names.begin(), names.end(), classes.begin(), classes.end()))
    throw ConfigError(
        fmt::format("{}: the labels {} and {} of these weights are both named \"{}\", and the data has its classes in "
                    "another order, so which of them is which is not known; number the labels of the data as the "
                    "weights do, and name its classes in their order: {}",
                    p.weights, alike->first, alike->second, names[alike->first], numbered(names)));
  if (data::is_reordering(classes, names)) {
    p.data = data::relabel(std::move(p.data), names);
    log.note("labels   numbered as in {}: {}", p.weights, numbered(names));
  } else if (evaluation) {
    throw ConfigError(
        fmt::format("{}: these weights are for the classes {}, but the data has {}; evaluate on data with "
                    "the model's classes",
                    p.weights, text::first_few(names), text::first_few(classes)));
  } else if (names.size() == classes.size()) {
    log.warn("{}: the head of these weights is for the classes {}; it is the starting point for {}", p.weights,
             text::first_few(names), text::first_few(classes));
  }
}

bool has_only_labels(const nlohmann::json& stored) {
  if (!stored.is_object() || stored.empty()) return false;
  for (const auto& [key, value] : stored.items())
    if (key != "id2label" && key != "label2id") return false;
  return true;
}

std::vector<std::string> classes_of_weights(const Prepared& p) {
  const StoredConfig stored(p);
  auto names = stored.labels();
  if (!names.empty()) return names;
  if (stored.config.is_null())
    throw CheckpointError(
        fmt::format("{}: nothing names the classes of these weights, so nothing can be predicted; write {} with the "
                    "names of all classes by their numbers: {{\"id2label\": {{\"0\": \"NAME\", ...}}}}",
                    p.adapters.empty() ? p.weights : p.adapters, stored.path));
  throw CheckpointError(
      fmt::format("{}: says no classes (id2label), so nothing can be predicted with these weights; add it, or use "
                  "weights that Trireme or transformers has exported",
                  stored.path));
}

void keep_files_of_weights(Prepared& p) {
  if (p.weights.empty()) return;
  const auto keep = [&](const char* name) {
    const auto path = checkpoint::beside_weights(p.weights, name);
    if (std::filesystem::exists(path)) p.kept_files[name] = checkpoint::read_file(path);
  };
  keep(checkpoint::kModelConfig);
  if (generates(p) && !checkpoint::read_beside_weights(p.weights, kGenerationConfig).is_null()) keep(kGenerationConfig);
  if (p.data.info.spec.tokens) return;  // another tokenizer's files may not be mixed with these
  for (const auto* name : kTokenizerFiles) keep(name);
}

void set_dtype(nlohmann::json& config, at::ScalarType dtype) {
  config["dtype"] = torch_name(dtype);
  if (config.contains("torch_dtype")) config["torch_dtype"] = torch_name(dtype);
}

std::vector<std::int64_t> end_ids(const Prepared& p) {
  for (const auto& [weights, config] :
       {std::pair{p.adapters, kAdaptedModelConfig}, {p.weights, checkpoint::kModelConfig}}) {
    if (weights.empty()) continue;
    for (const auto* name : {kGenerationConfig, config})
      if (auto ids = stored_ids(checkpoint::read_beside_weights(weights, name), kEndId,
                                checkpoint::beside_weights(weights, name));
          !ids.empty())
        return ids;
  }
  return {};
}

std::map<std::string, std::string> model_texts(const Prepared& p, std::optional<at::ScalarType> dtype) {
  auto texts = p.data.info.files;
  if (!p.kind) return texts;  // a program's model has no config.json
  texts.insert(p.kept_files.begin(), p.kept_files.end());
  const auto written = p.kind->to_hf(p.model_options.get());
  auto config = kept_config(p, written);
  const bool is_new = config.empty();
  config.update(written);
  if (const auto problem = config.find("problem_type"); problem != config.end() && *problem != p.task_kind.problem_type)
    config.erase(problem);
  if (const auto problem = p.task->problem_type(); !problem.empty()) config["problem_type"] = problem;
  if (is_new && generates(p)) {
    const auto ids = ids_of(p.data.info.spec.tokens.value_or(nn::TokenIds{}));
    // Without a key transformers takes the ids of its published model: null says that there is no such token.
    for (const auto& [key, id] : ids.items())
      if (config.value(key, nlohmann::json()).is_null()) config[key] = id;
    auto generation = ids;
    for (const auto& [key, id] : ids.items())
      if (id.is_null()) generation.erase(key);
    if (!generation.empty()) texts[kGenerationConfig] = json_text(generation, 2) + "\n";
  }
  set_dtype(config, dtype.value_or(Precision::parse(p.config.train.precision).parameters));
  texts[checkpoint::kModelConfig] = json_text(config, 2) + "\n";
  return texts;
}

}  // namespace trireme::train
