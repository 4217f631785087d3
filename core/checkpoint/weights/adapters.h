// Adapters (core/nn/layers/lora.h) in the format of Hugging Face's PEFT: a folder with adapter_config.json and
// adapter_model.safetensors. The file holds what is trained, what the adapters held that the training started from, and
// the model's buffers, which a training may change; its names begin with "base_model.model.". Of tensors that the model
// ties it holds each one (nn::saved_modules()).
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/weights/weights.h"

namespace trireme::checkpoint {

inline constexpr const char* kAdapterTensors = "adapter_model.safetensors";
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// The file with the adapters of a folder, of a run, or the file itself; "" when there are none.
std::string find_adapters(const std::string& folder_or_file);
/// As find_adapters(), but "" also where a model's own weights are beside the adapters.
std::string find_adapters_alone(const std::string& folder_or_file);

/// load_weights() of a model with adapters, for what either is not "": what `adapters` holds is
/// not read from `weights`, but by load_adapters().
/// @throws CheckpointError, NonFiniteError
void load_weights_and_adapters(const std::string& weights, const std::string& adapters,
                               std::vector<nn::Parameter> parameters, const std::string& head_prefix, const Log& log,
                               OtherTensors others);

/// Fills the parameters that PEFT's file holds: all adapters, and any others. The names of a PeftModel are read too:
/// "lora_A.default.weight" for "lora_A.weight".
/// @throws CheckpointError when an adapter is missing or does not fit, or the file has tensors that the model lacks;
/// ConfigError when the file has two values for one tensor of the model, or one of two that are tied.
void load_adapters(const std::string& folder_or_file, const std::vector<nn::Parameter>& parameters, const Log& log,
                   const OtherTensors& others);

/// Of a model's parameters on this rank, the names of those that the adapters' file holds.
std::set<std::string> parameters_in(const std::string& adapters, nn::Model& model);

/// Of a model's state, the tensors that its adapters' file holds, with their names in it. `loaded`: parameters_in() of
/// the adapters that the training started from; they are part of the model although they may not be trained.
std::vector<shard::Slice> adapter_slices(const std::vector<shard::Slice>& state, nn::Model& model,
                                         const std::set<std::string>& loaded = {});

/// Writes adapter_slices() to folder/adapter_model.safetensors, and `texts` next to it. Collective over the mesh's
/// world; rank 0 writes and gets the digest of the file. @throws CheckpointError on every rank, with the same message
FileDigest save_adapters(const std::string& folder, const std::vector<shard::Slice>& state, nn::Model& model,
                         const std::map<std::string, std::string>& texts, comm::Mesh& mesh,
                         const std::set<std::string>& loaded = {});

/// The weight W + scale B A, in at least float32.
at::Tensor merged(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale);

/// Writes a model in the format, with the weights W + alpha / r * B A in place of W and its adapter, in W's dtype or
/// that of the format, and `texts` next to it. `adapters`: the file with the trained tensors, on rank 0. Collective
/// over the mesh's world.
void save_merged(const std::string& folder, const std::vector<shard::Slice>& state, nn::Model& model,
                 const std::string& adapters, const std::map<std::string, std::string>& texts, comm::Mesh& mesh,
                 const ExportFormat& format = {});

}  // namespace trireme::checkpoint
