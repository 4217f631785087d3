// The weights and adapters that a run starts from, found and read once: their paths, and the configurations beside them
// in the formats of Hugging Face and PEFT.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/setup/run_config.h"

namespace trireme::train {

/// The model's config.json beside adapters has another name: transformers would look for weights beside config.json.
inline constexpr const char* kAdaptedModelConfig = "model_config.json";

/// A JSON object beside weights.
struct StoredConfig {
  std::string path{};                               ///< of the file, which need not exist; "" without weights
  std::shared_ptr<const nlohmann::json> content{};  ///< null: there is no such file

  /// Whether it says more than the names of classes, which may be all that is written beside a PyTorch state dict: the
  /// model then has the sizes of [model].
  [[nodiscard]] bool describes_model() const;
  /// The names of the classes by their numbers (id2label); empty if it has none. @throws CheckpointError
  [[nodiscard]] std::vector<std::string> labels() const;
  /// A key's value; null without the key or the file.
  [[nodiscard]] nlohmann::json value(const char* key) const;
};

/// Reads a file beside the weights; nothing for the weights "". @throws CheckpointError when it is not a JSON object
StoredConfig read_stored_config(const std::string& weights, const std::string& name);

struct LoadedWeights {
  std::string path{};      ///< of the weights; "": none, the model starts anew
  std::string base{};      ///< what names them: model.weights, the command's argument, or the adapters' configuration
  std::string adapters{};  ///< the file with the adapters; "": none
  /// [lora], or in an evaluation without it what adapter_config.json beside the adapters says; unset when the model
  /// gets no adapters.
  std::optional<LoraSection> lora{};
  StoredConfig config{};          ///< config.json beside the weights
  StoredConfig adapted_config{};  ///< model_config.json beside the adapters
};

/// `given`: the weights of an evaluation, or "" for a training. @throws ConfigError, CheckpointError
LoadedWeights find_loaded_weights(const RunConfig& config, const std::string& given);

/// Where the classes of the weights are named: beside the base model's if its adapters, if any, have neither a
/// configuration nor a head of their own. `head_prefix`: nn::ModelKind::head_prefix(). @throws CheckpointError
const StoredConfig& config_of_classes(const LoadedWeights& weights, const std::string& head_prefix);

}  // namespace trireme::train
