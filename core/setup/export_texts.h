// The files next to exported tensors, in the layouts of Hugging Face and PEFT. An export changes the files of the
// loaded weights in what the run decides, and keeps the rest.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/setup/run_setup.h"

namespace trireme::train {

/// Reads the files beside the weights that exports keep, by name: those of the tokenizer, unless the data have their
/// own; generation_config.json for a causal language model. @throws CheckpointError
std::map<std::string, std::string> files_to_keep(const LoadedWeights& weights, const ChosenTask& task,
                                                 const nn::DataSpec& data);

/// Says in a config.json which dtype the tensors have, under the name of today and, where it is there, the older one.
void set_dtype(nlohmann::json& config, at::ScalarType dtype);

/// The ids of the tokens that end a text, by the files beside the adapters, else the weights: in each place
/// generation_config.json comes before config.json. Empty: none names one. @throws CheckpointError
std::vector<std::int64_t> end_ids(const LoadedWeights& weights);

/// The files next to an exported model's tensors, by name. `dtype`: of these; unset: that of the training.
std::map<std::string, std::string> model_texts(const RunSetup& setup, std::optional<at::ScalarType> dtype = {});
/// model_texts(); with [lora] the files next to adapters, which keep their dtype.
std::map<std::string, std::string> exported_texts(const RunSetup& setup, std::optional<at::ScalarType> dtype = {});

}  // namespace trireme::train
