// [lora] in a run: adapters on the model (core/nn/lora.h), where weights and adapters are, and PEFT's
// adapter_config.json.
#pragma once

#include <map>
#include <string>

#include "core/train/prepare.h"

namespace trireme::train {

/// The folder of a run with its merged weights, if lora.merge is set.
inline constexpr const char* kMergedModel = "model-merged";

/// Sets Prepared::weights and Prepared::adapters. `given`: the weights of an evaluation, or "" for a training. Adapters
/// that are evaluated without a section [lora] get one from their adapter_config.json.
/// @throws ConfigError, CheckpointError
void locate_all_weights(Prepared& prepared, const std::string& given);

/// Adds the adapters to a new model. `head_prefix`: nn::ModelKind::head_prefix(). @throws ConfigError
void add_adapters(nn::Model& model, const LoraSection& lora, const std::string& head_prefix, const nn::Policy& policy);
/// The keys of [lora] that define the model, for ModelSource::options.
std::map<std::string, std::string> adapter_options(const LoraSection& lora);

/// The model's config.json beside adapters has another name: transformers would look for weights beside config.json.
inline constexpr const char* kAdaptedModelConfig = "model_config.json";

/// The files next to exported tensors: model_texts(); with [lora] those of adapters.
std::map<std::string, std::string> exported_texts(const Prepared& prepared);

/// "r 8, alpha 16, dropout 0.1 on 24 layers: query, value; classifier is trained in full"
std::string adapters_line(const LoraSection& lora, nn::Model& model);

}  // namespace trireme::train
