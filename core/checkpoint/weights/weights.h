// Model weights in Hugging Face's layout: config.json, preprocessor_config.json and model.safetensors, as one file or
// as shards with an index.
//
// Weights can be loaded from a folder with that layout, a run folder (its model/ is used), a checkpoint's folder, one
// .safetensors file, or an index file (model.safetensors.index.json). PyTorch's state dicts are read in the same
// places: pytorch_model.bin, its index, or one file of any name; safetensors is preferred where a folder has both.
// Tensor names are the model's own, or others that stored_names.h finds.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/checkpoint/weights/model_files.h"
#include "core/nn/naming.h"
#include "core/nn/parameters.h"
#include "core/shard/assembly.h"

namespace trireme::checkpoint {

inline constexpr const char* kModelConfig = "config.json";
/// How images are preprocessed for the model, in the format of transformers' image processors.
inline constexpr const char* kPreprocessorConfig = "preprocessor_config.json";

/// The path of a file next to the weights, which need not exist. @throws CheckpointError when there are no weights.
std::string beside_weights(const std::string& folder_or_file, const std::string& name);
/// Reads the object in a JSON file next to the weights; null when there is none. @throws CheckpointError when it is not
/// JSON or no object
nlohmann::json read_beside_weights(const std::string& folder_or_file, const std::string& name = kModelConfig);
/// Whether the weights have any of the model's tensors under `head_prefix` ("classifier."). Reads only headers.
/// @throws CheckpointError
bool has_head(const std::string& folder_or_file, nn::Model& model, const std::string& head_prefix);

/// The tensors of a model besides the parameters that this rank holds, and how stored ones may be converted. Valid as
/// long as the model.
struct OtherTensors {
  /// nn::Model::conversion(); null: every tensor must have its parameter's shape.
  std::function<nn::Conversion(const std::string& name, at::IntArrayRef from, at::IntArrayRef to)> conversion{};
  std::vector<nn::Naming> namings{};             ///< nn::Model::namings()
  std::vector<nn::RedundantTensor> redundant{};  ///< nn::Model::redundant_tensors()
  std::vector<nn::Declaration> remote{};  ///< held by other ranks only; every rank reports the same about the file
  std::vector<shard::Slice> buffers{};    ///< of all blocks
  /// Parameters that keep their values if the file lacks them: adapters (core/nn/layers/lora.h), which base models
  /// lack.
  std::set<std::string> optional{};
  std::set<std::string> unread{};  ///< parameters that another file fills, whatever this one has
  bool are_adapters = false;       ///< the file must not have tensors that the model lacks
};
OtherTensors other_tensors(nn::Model& model);
/// Replaces parameters by the parts in which files hold them (shard::stored_slices()); those parts of which this rank
/// has no elements join `remote`, whose parameters are replaced alike.
void unstack_as_stored(std::vector<nn::Parameter>& parameters, std::vector<nn::Declaration>& remote);

/// Fills the parameters, which must be materialised, with their slices of the file's tensors, converted to their dtype.
/// A tensor that the model needs but the file lacks is an error, as is a shape that the model does not convert. Under
/// `head_prefix` ("classifier."; "" for none) such a parameter instead keeps its random initialisation, which is
/// logged. Tensors of the file that the model lacks are counted in a warning, except redundant ones; they are an error
/// if they are those of further layers, because the model then has another depth than the weights. Buffers of `others`
/// that the file lacks keep their values, with a warning.
/// @throws CheckpointError that lists what is missing or does not fit, ConfigError for two tensors that differ and of
/// which the model has one (a tied head); no parameter has changed then. NonFiniteError that names a tensor whose slice
/// on this rank has a NaN or an infinity.
void load_weights(const std::string& folder_or_file, std::vector<nn::Parameter> parameters,
                  const std::string& head_prefix, const Log& log, OtherTensors others = {});

/// Writes folder/model.safetensors, or several files, and, next to it, `texts` by their names (config.json), each
/// atomically. Collective over the mesh's world: each rank provides its slices, rank 0 writes. Returns the digest of
/// rank 0's file, and an empty one on other ranks. @throws CheckpointError on every rank, with the same message
FileDigest save_weights(const std::string& folder, const std::vector<shard::Slice>& weights,
                        const std::map<std::string, std::string>& texts, comm::Mesh& mesh,
                        const ExportFormat& format = {}, const ChangeTensor& change = {});

}  // namespace trireme::checkpoint
