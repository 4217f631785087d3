// Model weights in Hugging Face layout: config.json + model.safetensors, one file or shards with an index.
//
// A place to load from is a folder of that layout, a run folder (its model/ is meant), one .safetensors file, or an
// index file (model.safetensors.index.json). Tensor names are the model's own; a file without the model's common first
// word ("vit."), as a base model is exported, is taken when every name then fits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/nn/parameters.h"
#include "core/shard/assembly.h"

namespace trireme::checkpoint {

/// Reads config.json beside the weights; null when there is none. @throws CheckpointError when it is not JSON.
nlohmann::json read_model_config(const std::string& folder_or_file);

/// Fills the parameters (already materialised) with their slices of the file's tensors, converted to their dtype.
/// A tensor that the model needs and the file lacks is an error, as is a wrong shape; except under `head_prefix`
/// ("classifier."; "" for none): there a missing or differently shaped tensor keeps its fresh draw, which is said in
/// the log. Tensors of the file that the model lacks are counted in a warning. `elsewhere`: parameters of the model
/// that other ranks hold, so that every rank says the same of the file. On error no parameter has changed.
/// @throws CheckpointError that lists what is missing or does not fit.
void load_weights(const std::string& folder_or_file, const std::vector<nn::Parameter>& parameters,
                  const std::string& head_prefix, const Log& log, const std::vector<nn::Declaration>& elsewhere = {});

/// Writes folder/model.safetensors and folder/config.json, each whole or not at all. Collective over the mesh's world:
/// each rank gives its slices, rank 0 writes.
void save_weights(const std::string& folder, const std::vector<shard::Slice>& weights,
                  const nlohmann::json& model_config, comm::Mesh& mesh);

}  // namespace trireme::checkpoint
