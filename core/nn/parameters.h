// The parameters of a model by name: their declarations, initial values, and the slices that this rank holds. Also its
// buffers: tensors that a step changes without gradients, such as the running statistics of a batch normalisation.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/shard/init.h"
#include "core/shard/placement.h"

namespace trireme::nn {

class Model;  // in core/nn/block.h, which includes torch::nn::Module and is slow to compile

/// A parameter as the rest of the engine sees it. `value` is the leaf that the layers use.
struct Parameter {
  std::string name;
  at::Tensor value;
  shard::Placement placement;
};

/// All parameters of the model that this rank holds (Model::keep_stage_blocks), in registration order, each once: a
/// shared one under its first name.
std::vector<Parameter> parameters(Model& model);

/// Gives every declared parameter memory on `device` in `dtype` for the slice that this rank holds, and draws its
/// values by name from `seed`. Parameters that already have memory (a user's own module) keep their values; they and
/// all buffers are moved to `dtype` and `device`.
void materialize(Model& model, std::uint64_t seed, at::ScalarType dtype, c10::Device device);

/// A parameter whose memory has not been decided yet.
struct Declaration {
  std::string name;
  shard::Placement placement;       ///< the slice that this rank holds, before anything shards it further
  std::optional<shard::Init> init;  ///< unset: a user's own module has initialised it
  at::Tensor value;                 ///< the leaf; on the meta device where init is set
};
/// All parameters that this rank holds, in registration order, each once: a shared one under its first name.
std::vector<Declaration> declarations(Model& model);
/// The parameters that only ranks with other blocks hold.
std::vector<Declaration> remote_declarations(Model& model);

/// All buffers of the blocks that this rank runs, in registration order, each once; every one is whole. A buffer that
/// no block uses belongs to the first block. Writing to a value changes the model's buffer. Pipeline stages that share
/// a buffer update copies of their own, of which only the first stage's is saved.
std::vector<shard::Slice> buffers(Model& model);
/// The buffers that only ranks with other blocks run. They have memory here too, because user modules allocate it.
std::vector<shard::Slice> remote_buffers(Model& model);

/// Frees the memory of remote parameters that a user's own modules have allocated.
void release_remote(Model& model);

/// Maps each parameter's name to the indices of the blocks that use it, in ascending order. A parameter that no block
/// uses is assigned to the first block.
std::map<std::string, std::vector<std::size_t>> users(Model& model);

/// Replaces every parameter by the tensor that `memory` returns for it. The tensor has the shape that this rank holds
/// and any storage, such as a part of a larger buffer; the caller sets its values. requires_grad does not change.
/// Buffers are moved to `dtype` and `device`.
using MemoryOf = std::function<at::Tensor(const Declaration&)>;
void install(Model& model, const MemoryOf& memory, at::ScalarType dtype, c10::Device device);
/// The number of parameters of the full model.
std::int64_t parameter_count(Model& model);

}  // namespace trireme::nn
