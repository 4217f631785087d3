// The parameters of a model by name: where they stand, how they start, what slice this rank has.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/shard/init.h"
#include "core/shard/placement.h"

namespace trireme::nn {

class Model;  // core/nn/block.h: torch::nn::Module behind it is slow to compile

/// A parameter as the rest of the engine sees it. `value` is the leaf that the layers use.
struct Parameter {
  std::string name;
  at::Tensor value;
  shard::Placement placement;
};

/// All parameters of the model that this rank holds (Model::keep), in registration order, each once (a shared one under
/// its first name).
std::vector<Parameter> parameters(Model& model);

/// Gives every declared parameter memory on `device` in `dtype`, for the slice that this rank is to hold, and draws it
/// by name from `seed`. Parameters that already have memory (a user's own module) keep their values, and they and all
/// buffers are moved to `dtype` and `device`.
void materialize(Model& model, std::uint64_t seed, at::ScalarType dtype, c10::Device device);

/// A parameter before anything is decided about its memory.
struct Declaration {
  std::string name;
  shard::Placement placement;       ///< what this rank holds of it, before anything else cuts it further
  std::optional<shard::Init> init;  ///< unset: a user's own module has given it values
  at::Tensor value;                 ///< the leaf; without memory (meta) where init is set
};
/// All that this rank holds, in registration order, each once (a shared one under its first name).
std::vector<Declaration> declarations(Model& model);
/// Those that ranks hold which run other blocks.
std::vector<Declaration> remote_declarations(Model& model);

/// Frees what a user's own modules have made for parameters that are elsewhere.
void release_remote(Model& model);

/// The blocks that use each parameter of the model, by its name: their numbers, ascending. One that no block has counts
/// to the first.
std::map<std::string, std::vector<std::size_t>> users(Model& model);

/// Every parameter becomes the tensor that `memory` returns for it: of the shape that this rank holds, any storage,
/// such as a part of a larger buffer. Values are the caller's; requires_grad is kept. Buffers are moved to `dtype` and
/// `device`.
using MemoryOf = std::function<at::Tensor(const Declaration&)>;
void install(Model& model, const MemoryOf& memory, at::ScalarType dtype, c10::Device device);
/// Parameter count of the full model.
std::int64_t parameter_count(Model& model);

}  // namespace trireme::nn
