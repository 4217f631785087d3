// Model weights in Hugging Face layout: config.json, preprocessor_config.json and model.safetensors, one file or shards
// with an index.
//
// A place to load from is a folder of that layout, a run folder (its model/ is meant), a checkpoint's folder, one
// .safetensors file, or an index file (model.safetensors.index.json). Tensor names are the model's own; a file without
// the model's common first word ("vit."), as a base model is exported, is taken when every name then fits.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/checkpoint/files.h"
#include "core/nn/parameters.h"
#include "core/shard/assembly.h"

namespace trireme::checkpoint {

/// The one file of a model's tensors, in its folder.
inline constexpr const char* kModelTensors = "model.safetensors";
inline constexpr const char* kModelConfig = "config.json";
/// How images are prepared for the model: what transformers' image processors read.
inline constexpr const char* kPreprocessorConfig = "preprocessor_config.json";

/// The path of a file beside the weights, there or not. @throws CheckpointError when there are no weights.
std::string beside_weights(const std::string& folder_or_file, const std::string& name);
/// Reads a JSON file beside the weights; null when there is none. @throws CheckpointError when it is not JSON.
nlohmann::json read_beside_weights(const std::string& folder_or_file, const std::string& name = kModelConfig);
/// Whether any tensor's name begins with the prefix ("classifier."). Reads headers alone. @throws CheckpointError
bool has_weights_under(const std::string& folder_or_file, const std::string& prefix);

/// Fills the parameters (already materialised) with their slices of the file's tensors, converted to their dtype.
/// A tensor that the model needs and the file lacks is an error, as is a wrong shape; except under `head_prefix`
/// ("classifier."; "" for none): there a missing or differently shaped tensor keeps its fresh draw, which is said in
/// the log. Tensors of the file that the model lacks are counted in a warning. `elsewhere`: parameters of the model
/// that other ranks hold, so that every rank says the same of the file.
/// @throws CheckpointError that lists what is missing or does not fit: then no parameter has changed; NonFiniteError
/// that names a tensor whose part here holds a NaN or an infinity.
void load_weights(const std::string& folder_or_file, const std::vector<nn::Parameter>& parameters,
                  const std::string& head_prefix, const Log& log, const std::vector<nn::Declaration>& remote = {});

/// Writes folder/model.safetensors and, beside it, `texts` by their names (config.json), each whole or not at all.
/// Collective over the mesh's world: each rank gives its slices, rank 0 writes. The digest of rank 0's tensors; an
/// empty one on the others.
FileDigest save_weights(const std::string& folder, const std::vector<shard::Slice>& weights,
                        const std::map<std::string, std::string>& texts, comm::Mesh& mesh);

}  // namespace trireme::checkpoint
