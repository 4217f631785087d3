#include "core/nn/parameters.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/base/planned_device.h"
#include "core/nn/block.h"

namespace trireme::nn {
namespace {

/// The layer that declared a parameter, and the index of the declaration there.
struct Site {
  Layer* layer;
  std::size_t index;
  [[nodiscard]] const Layer::Declared& declared() const { return layer->declared()[index]; }
};

/// Maps each tensor to the layer that declared it. Parameters of a user's own module are not included.
std::unordered_map<const void*, Site> sites(Model& model) {
  std::unordered_map<const void*, Site> out;
  for (auto* layer : layers_in(model))
    for (std::size_t i = 0; i < layer->declared().size(); ++i)
      out.emplace(layer->declared()[i].member->unsafeGetTensorImpl(), Site{layer, i});
  return out;
}

/// Maps each parameter and buffer to the blocks that use it, in ascending order.
std::unordered_map<const void*, std::vector<std::size_t>> block_users(Model& model) {
  std::unordered_map<const void*, std::vector<std::size_t>> out;
  for (std::size_t i = 0; i < model.blocks().size(); ++i)
    for (const auto& tensors : {model.blocks()[i]->parameters(), model.blocks()[i]->buffers()})
      for (const auto& tensor : tensors) {
        auto& blocks = out[tensor.unsafeGetTensorImpl()];
        if (blocks.empty() || blocks.back() != i) blocks.push_back(i);
      }
  return out;
}

/// Whether a parameter or buffer is on this rank, when each pipeline stage runs some of the blocks.
enum class Ownership {
  owned,   ///< on this rank, which saves and reports it, even if other stages have a copy
  copy,    ///< on this rank, but owned by the rank that runs the first block that uses it
  remote,  ///< on other ranks only
};

class StageOwnership {
 public:
  explicit StageOwnership(Model& model) : stage_blocks_(model.stage_blocks()) {
    if (stage_blocks_) users_ = block_users(model);
  }
  [[nodiscard]] Ownership of(const void* tensor) const {
    if (!stage_blocks_) return Ownership::owned;
    const auto found = users_.find(tensor);
    const auto runs = [&](std::size_t block) {
      return std::binary_search(stage_blocks_->blocks.begin(), stage_blocks_->blocks.end(), block);
    };
    if (found == users_.end()) return runs(0) ? Ownership::owned : Ownership::remote;
    if (runs(found->second.front())) return Ownership::owned;
    return std::any_of(found->second.begin(), found->second.end(), runs) ? Ownership::copy : Ownership::remote;
  }

 private:
  const std::optional<Model::StageBlocks>& stage_blocks_;
  std::unordered_map<const void*, std::vector<std::size_t>> users_;
};

struct Found {
  std::string name;
  at::Tensor value;
  const Site* site;  ///< null: a parameter of a user's own module
  Ownership ownership;
};

/// Calls `use` for every parameter, including remote ones, in registration order; for a shared one only once.
template <class Use>
void for_all(Model& model, Use&& use) {
  const auto declared = sites(model);
  const StageOwnership stages(model);
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    const void* identity = item.value().unsafeGetTensorImpl();
    if (!seen.insert(identity).second) continue;
    const auto site = declared.find(identity);
    use(Found{item.key(), item.value(), site == declared.end() ? nullptr : &site->second, stages.of(identity)});
  }
}

/// The same for the parameters that are on this rank.
template <class Use>
void for_each(Model& model, Use&& use) {
  for_all(model, [&](const Found& found) {
    if (found.ownership != Ownership::remote) use(found);
  });
}

shard::Placement placement_of(const Found& found, const Model& model) {
  auto placement = found.site == nullptr ? shard::Placement::whole(found.name, found.value.sizes().vec())
                                         : found.site->declared().placement;
  placement.name = found.name;
  if (!placement.stored_unstacked.empty())
    placement.stored_unstacked = found.site->layer->path() + "." + placement.stored_unstacked;
  if (model.stage_blocks()) placement.stage_axis = model.stage_blocks()->axis;
  placement.copy = found.ownership == Ownership::copy;
  return placement;
}

Declaration declaration(const Found& found, const Model& model) {
  Declaration out{found.name, placement_of(found, model), std::nullopt, found.value};
  if (found.site != nullptr && found.value.is_meta()) out.init = found.site->declared().init;
  return out;
}

/// The buffers for whose ownership `wanted` returns true.
template <class Wanted>
std::vector<shard::Slice> buffers_where(Model& model, Wanted&& wanted) {
  const StageOwnership stages(model);
  std::unordered_set<const void*> seen;
  std::vector<shard::Slice> out;
  for (const auto& item : model.named_buffers()) {
    const void* identity = item.value().unsafeGetTensorImpl();
    const auto ownership = stages.of(identity);
    if (!item.value().defined() || !wanted(ownership) || !seen.insert(identity).second) continue;
    // variable_data() shares the memory, but writing to it does not count as a change of what autograd has saved.
    shard::Slice slice{shard::Placement::whole(item.key(), item.value().sizes().vec()), item.value().variable_data()};
    if (model.stage_blocks()) slice.placement.stage_axis = model.stage_blocks()->axis;
    slice.placement.copy = ownership == Ownership::copy;
    slice.placement.first_copy_counts = true;
    out.push_back(std::move(slice));
  }
  return out;
}

}  // namespace

std::vector<shard::Slice> buffers(Model& model) {
  return buffers_where(model, [](Ownership ownership) { return ownership != Ownership::remote; });
}

std::vector<shard::Slice> remote_buffers(Model& model) {
  return buffers_where(model, [](Ownership ownership) { return ownership == Ownership::remote; });
}

std::vector<Parameter> parameters(Model& model) {
  std::vector<Parameter> out;
  for_each(model, [&](const Found& found) { out.push_back({found.name, found.value, placement_of(found, model)}); });
  return out;
}

/// Integer tensors keep their dtype.
static void move_to(const at::Tensor& tensor, at::ScalarType dtype, c10::Device device) {
  const auto wanted = tensor.is_floating_point() ? dtype : tensor.scalar_type();
  if (tensor.scalar_type() != wanted || tensor.device() != device)
    set_value(tensor, tensor.detach().to(device, wanted));
}

/// Our own layers keep buffers in float32 at least: 16 bits would round small changes of a running mean to nothing.
static void move_buffers(Model& model, at::ScalarType dtype, c10::Device device) {
  const auto widest = c10::elementSize(dtype) < 4 ? at::kFloat : dtype;
  model.apply([&](torch::nn::Module& module) {
    const bool ours = dynamic_cast<Layer*>(&module) != nullptr && dynamic_cast<Model*>(&module) == nullptr;
    for (auto& buffer : module.buffers(/*recurse=*/false)) move_to(buffer, ours ? widest : dtype, device);
  });
}

void materialize(Model& model, std::uint64_t seed, at::ScalarType dtype, c10::Device device) {
  for_each(model, [&](const Found& found) {
    if (!found.value.is_meta()) return move_to(found.value, dtype, device);
    TRIREME_REQUIRE(found.site != nullptr, "the parameter \"{}\" has no memory and no layer that declares it",
                    found.name);
    const auto& declared = found.site->declared();
    auto value = shard::draw(declared.init, seed, placement_of(found, model), dtype, device);
    if (declared.placement.is_whole()) value = value.contiguous(declared.format);
    found.site->layer->set_storage(declared.name, std::move(value));
  });
  move_buffers(model, dtype, device);
}

std::vector<Declaration> declarations(Model& model) {
  std::vector<Declaration> out;
  for_each(model, [&](const Found& found) { out.push_back(declaration(found, model)); });
  return out;
}

std::vector<Declaration> remote_declarations(Model& model) {
  std::vector<Declaration> out;
  for_all(model, [&](const Found& found) {
    if (found.ownership == Ownership::remote) out.push_back(declaration(found, model));
  });
  return out;
}

void release_remote(Model& model) {
  for (const auto& parameter : remote_declarations(model)) {
    if (parameter.value.is_meta()) continue;
    auto* storage = parameter.value.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
    storage->set_nbytes(0);
  }
}

std::map<std::string, std::vector<std::size_t>> users(Model& model) {
  const auto blocks = block_users(model);
  std::map<std::string, std::vector<std::size_t>> out;
  for_all(model, [&](const Found& found) {
    const auto at = blocks.find(found.value.unsafeGetTensorImpl());
    out[found.name] = at == blocks.end() ? std::vector<std::size_t>{0} : at->second;
  });
  return out;
}

void install(Model& model, const MemoryOf& memory, at::ScalarType dtype, c10::Device device) {
  for_each(model, [&](const Found& found) {
    auto value = memory(declaration(found, model));
    TRIREME_CHECK(value.sizes().vec() == placement_of(found, model).local_shape(), "{}: memory of another shape",
                  found.name);
    if (found.site != nullptr)
      found.site->layer->set_storage(found.site->declared().name, std::move(value));
    else
      set_value(found.value, value);
  });
  move_buffers(model, dtype, device);
}

std::int64_t parameter_count(Model& model) {
  std::int64_t count = 0;
  for_all(model, [&](const Found& found) { count += placement_of(found, model).full_numel(); });
  return count;
}

}  // namespace trireme::nn
