#include "core/train/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/booster/precision.h"
#include "core/checkpoint/weights.h"
#include "core/checkpoint/weights_source.h"
#include "core/data/relabel.h"
#include "core/train/lora.h"

namespace trireme::train {
namespace {

/// The label names in a stored model's configuration, in order; empty if they are not numbered from 0.
/// @throws CheckpointError, which names the file `path`
std::vector<std::string> stored_labels(const nlohmann::json& stored, const std::string& path) {
  std::vector<std::string> names;
  const auto labels = stored.is_object() ? stored.find("id2label") : stored.end();
  if (labels == stored.end() || !labels->is_object()) return names;
  for (std::size_t i = 0; i < labels->size(); ++i) {
    const auto found = labels->find(std::to_string(i));
    if (found == labels->end()) return {};
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

}  // namespace

void adopt_labels(Prepared& p, bool evaluation, const Log& log) {
  if (p.weights.empty()) return;
  const auto names = StoredConfig(p).labels();
  const auto& classes = p.data.info.spec.class_names;
  if (!are_given(names) || classes.empty() || names == classes) return;
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

std::map<std::string, std::string> model_texts(const Prepared& p, std::optional<at::ScalarType> dtype) {
  auto texts = p.data.info.files;
  if (!p.kind) return texts;  // a program's model has no config.json
  auto model = p.kind->to_hf(p.model_options.get());
  model["dtype"] = torch_name(dtype.value_or(Precision::parse(p.config.train.precision).parameters));
  if (const auto problem = p.task->problem_type(); !problem.empty()) model["problem_type"] = problem;
  texts[checkpoint::kModelConfig] = json_text(model, 2) + "\n";
  return texts;
}

}  // namespace trireme::train
