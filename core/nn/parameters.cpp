#include "core/nn/parameters.h"

#include <unordered_map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme::nn {
namespace {

/// Where a parameter was declared.
struct Site {
  Layer* layer;
  std::size_t index;
  [[nodiscard]] const Layer::Declared& declared() const { return layer->declared()[index]; }
};

/// Tensor -> the layer that declared it. Parameters that a user's own module made are not in it.
std::unordered_map<const void*, Site> sites(Model& model) {
  std::unordered_map<const void*, Site> out;
  model.apply([&](torch::nn::Module& module) {
    auto* layer = dynamic_cast<Layer*>(&module);
    if (layer == nullptr) return;
    for (std::size_t i = 0; i < layer->declared().size(); ++i)
      out.emplace(layer->declared()[i].member->unsafeGetTensorImpl(), Site{layer, i});
  });
  return out;
}

struct Found {
  std::string name;
  at::Tensor value;
  const Site* site;  ///< null: of a user's own module
};

/// All parameters in registration order, each once; `use` is called for each.
template <class Use>
void for_each(Model& model, Use&& use) {
  const auto declared = sites(model);
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    const void* identity = item.value().unsafeGetTensorImpl();
    if (!seen.insert(identity).second) continue;
    const auto site = declared.find(identity);
    use(Found{item.key(), item.value(), site == declared.end() ? nullptr : &site->second});
  }
}

shard::Placement placement_of(const Found& found) {
  if (found.site == nullptr) return shard::Placement::whole(found.name, found.value.sizes().vec());
  auto placement = found.site->declared().placement;
  placement.name = found.name;
  return placement;
}

Declaration declaration(const Found& found) {
  Declaration out{found.name, placement_of(found), std::nullopt, found.value};
  if (found.site != nullptr && found.value.is_meta()) out.init = found.site->declared().init;
  return out;
}

}  // namespace

std::vector<Parameter> parameters(Model& model) {
  std::vector<Parameter> out;
  for_each(model, [&](const Found& found) { out.push_back({found.name, found.value, placement_of(found)}); });
  return out;
}

/// In place: the module that holds the tensor sees it. Whole numbers keep their dtype.
static void move_to(at::Tensor tensor, at::ScalarType dtype, c10::Device device) {
  const auto wanted = tensor.is_floating_point() ? dtype : tensor.scalar_type();
  if (tensor.scalar_type() != wanted || tensor.device() != device) tensor.set_data(tensor.detach().to(device, wanted));
}

void materialize(Model& model, std::uint64_t seed, at::ScalarType dtype, c10::Device device) {
  for_each(model, [&](const Found& found) {
    if (!found.value.is_meta()) return move_to(found.value, dtype, device);
    TRIREME_CHECK(found.site != nullptr, "the parameter \"{}\" has no memory and no layer that declares it",
                  found.name);
    const auto& declared = found.site->declared();
    found.site->layer->place(declared.name, shard::draw(declared.init, seed, placement_of(found), dtype, device));
  });
  for (auto& buffer : model.buffers()) move_to(buffer, dtype, device);
}

std::vector<Declaration> declarations(Model& model) {
  std::vector<Declaration> out;
  for_each(model, [&](const Found& found) { out.push_back(declaration(found)); });
  return out;
}

void install(Model& model, const MemoryOf& memory, at::ScalarType dtype, c10::Device device) {
  for_each(model, [&](const Found& found) {
    auto value = memory(declaration(found));
    TRIREME_CHECK(value.sizes().vec() == placement_of(found).local_shape(), "{}: memory of another shape", found.name);
    if (found.site != nullptr)
      found.site->layer->place(found.site->declared().name, std::move(value));
    else
      at::Tensor(found.value).set_data(value);
  });
  for (auto& buffer : model.buffers()) move_to(buffer, dtype, device);
}

std::int64_t parameter_count(Model& model) {
  std::int64_t count = 0;
  for (const auto& declared : declarations(model)) count += declared.placement.full_numel();
  return count;
}

}  // namespace trireme::nn
