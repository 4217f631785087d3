// [lora] in a run: adapters on the model (core/nn/layers/lora.h).
#pragma once

#include <map>
#include <string>

#include "core/nn/block.h"
#include "core/nn/policy.h"
#include "core/setup/run_config.h"
#include "core/shardformer/role.h"

namespace trireme::train {

/// The folder of a run with its merged weights, if lora.merge is set.
inline constexpr const char* kMergedModel = "model-merged";

/// Adds the adapters to a new model. `head_prefix`: nn::ModelKind::head_prefix(). @throws ConfigError
void add_adapters(nn::Model& model, const LoraSection& lora, const std::string& head_prefix, const nn::Policy& policy,
                  const shardformer::Roles& roles);
/// The keys of [lora] that define the model, for ModelSource::options.
std::map<std::string, std::string> adapter_options(const LoraSection& lora);
/// "r 8, alpha 16, dropout 0.1 on 24 layers: query, value; classifier is trained in full"
std::string adapters_line(const LoraSection& lora, nn::Model& model);

}  // namespace trireme::train
