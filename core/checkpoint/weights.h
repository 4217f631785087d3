// Model weights in Hugging Face layout: config.json + model.safetensors, one file or shards with an index.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/log.h"
#include "core/nn/parameters.h"

namespace trireme::checkpoint {

/// Reads config.json beside the weights; null when there is none. @throws CheckpointError when it is not JSON.
nlohmann::json read_model_config(const std::string& folder_or_file);

/// Fills the parameters (already materialised) with their slices of the file's tensors, converted to their dtype.
/// A tensor that the model needs and the file lacks is an error, as is a wrong shape; except under `head_prefix`
/// ("classifier."): there a missing or differently shaped tensor keeps its fresh draw, which is said in the log.
/// @throws CheckpointError that lists what is missing or does not fit.
void load_weights(const std::string& folder_or_file, std::vector<nn::Parameter>& parameters,
                  const std::string& head_prefix, const Log& log);

/// Writes folder/model.safetensors and folder/config.json. Every rank calls; `full` holds full tensors (rank 0 writes).
void save_weights(const std::string& folder, const std::vector<std::pair<std::string, at::Tensor>>& full,
                  const nlohmann::json& model_config);

}  // namespace trireme::checkpoint
