#include "core/checkpoint/weights/adapters.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/promote_types.h>

#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/shared_errors.h"
#include "core/checkpoint/weights/weights_source.h"
#include "core/nn/block.h"
#include "core/nn/layers/lora.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "base_model.model.";
constexpr std::array kFiles{kAdapterTensors, "adapter_model.bin"};

/// PEFT's names in its files, and in its models, where they have the name of the adapters in them.
std::vector<nn::Naming> peft_namings() {
  constexpr int kDeepest = 24;  // parts of a name
  nn::Naming files{"PEFT", {}}, model{"PEFT", {}};
  std::vector<nn::StoredName> in_full;
  std::string stars;
  for (int depth = 1; depth <= kDeepest; ++depth) {
    stars += depth == 1 ? "*" : ".*";
    files.names.push_back({stars, kPrefix + stars});
    for (const std::string part : {"lora_A", "lora_B"})
      model.names.push_back(
          {fmt::format("{}.{}.weight", stars, part), fmt::format("{}{}.{}.default.weight", kPrefix, stars, part)});
    in_full.push_back({stars + ".*", fmt::format("{}{}.modules_to_save.default.*", kPrefix, stars)});
  }
  model.names.insert(model.names.end(), in_full.begin(), in_full.end());
  return {std::move(files), std::move(model)};
}

/// The tensors of a model by whether the file holds them.
class AdapterFile {
 public:
  explicit AdapterFile(const std::string& file) : source_(file) {}
  [[nodiscard]] bool holds(const std::string& name) const {
    return std::any_of(namings_.begin(), namings_.end(), [&](const nn::Naming& naming) {
      const auto stored = naming.find(name);
      return stored && source_.file_of(stored->stored) != nullptr;
    });
  }

 private:
  WeightsSource source_;
  std::vector<nn::Naming> namings_ = peft_namings();
};

/// Names of the parameters and buffers that the file does not hold.
std::set<std::string> not_in(const std::string& file, const std::vector<nn::Parameter>& parameters,
                             const OtherTensors& others) {
  const AdapterFile adapters(file);
  std::set<std::string> out;
  const auto look_up = [&](const std::string& name) {
    if (!adapters.holds(name)) out.insert(name);
  };
  for (const auto& parameter : parameters) look_up(parameter.name);
  for (const auto& parameter : others.remote) look_up(parameter.name);
  for (const auto& buffer : others.buffers) look_up(buffer.placement.name);
  return out;
}

/// merged() with the adapter of the file.
at::Tensor merged_layer(const at::Tensor& weight, const nn::Linear& layer, const SafeTensors& adapters) {
  const auto read = [&](const char* part) {
    return adapters.read(fmt::format("{}{}.{}.weight", kPrefix, layer.path(), part));
  };
  return merged(weight, read("lora_A"), read("lora_B"), layer.adapter()->scale);
}

}  // namespace

std::string find_adapters(const std::string& folder_or_file) {
  std::error_code none;
  const fs::path path(folder_or_file);
  for (const char* name : kFiles) {
    if (fs::is_regular_file(path, none) && path.filename() == name) return folder_or_file;
    for (const auto& folder : {path, path / "model"})
      if (fs::is_regular_file(folder / name, none)) return (folder / name).string();
  }
  return "";
}

std::string find_adapters_alone(const std::string& folder_or_file) {
  auto file = find_adapters(folder_or_file);
  const auto folder = fs::path(file).parent_path();
  if (!file.empty() && (fs::exists(folder / kModelTensors) || fs::exists(folder / kModelIndex))) file.clear();
  return file;
}

/// As find_adapters(). @throws CheckpointError when there are none
static std::string existing_adapters(const std::string& folder_or_file) {
  auto file = find_adapters(folder_or_file);
  if (file.empty())
    throw CheckpointError(fmt::format("{}: no adapters here; name a folder with {}", folder_or_file, kAdapterTensors));
  return file;
}

void load_weights_and_adapters(const std::string& weights, const std::string& adapters,
                               std::vector<nn::Parameter> parameters, const std::string& head_prefix, const Log& log,
                               OtherTensors others) {
  unstack_as_stored(parameters, others.remote);
  if (!weights.empty() && adapters.empty()) load_weights(weights, parameters, head_prefix, log, others);
  if (adapters.empty()) return;
  auto of_base = others;
  const auto needed = not_in(existing_adapters(adapters), parameters, others);
  for (const auto& parameter : parameters)
    if (needed.count(parameter.name) == 0) of_base.unread.insert(parameter.name);
  for (const auto& parameter : others.remote)
    if (needed.count(parameter.name) == 0) of_base.unread.insert(parameter.name);
  if (!weights.empty()) load_weights(weights, parameters, head_prefix, log, of_base);
  load_adapters(adapters, parameters, log, others);
}

void load_adapters(const std::string& folder_or_file, const std::vector<nn::Parameter>& parameters, const Log& log,
                   const OtherTensors& others) {
  const auto file = existing_adapters(folder_or_file);
  auto of_adapters = others;
  of_adapters.conversion = nullptr;
  of_adapters.namings = peft_namings();
  of_adapters.are_adapters = true;
  of_adapters.optional = not_in(file, parameters, others);
  std::erase_if(of_adapters.buffers,
                [&](const shard::Slice& buffer) { return of_adapters.optional.count(buffer.placement.name) != 0; });
  for (const auto& adapter : others.optional) of_adapters.optional.erase(adapter);
  load_weights(file, parameters, "", log, of_adapters);
}

std::set<std::string> parameters_in(const std::string& adapters, nn::Model& model) {
  const AdapterFile file(existing_adapters(adapters));
  std::set<std::string> out;
  for (const auto& parameter : nn::declarations(model))
    if (file.holds(parameter.placement.stored_names().front())) out.insert(parameter.name);
  return out;
}

std::vector<shard::Slice> adapter_slices(const std::vector<shard::Slice>& state, nn::Model& model,
                                         const std::set<std::string>& loaded) {
  std::set<std::string> of_base;
  for (const auto& parameter : nn::declarations(model))
    if (!parameter.value.requires_grad() && !loaded.contains(parameter.name))
      for (auto& name : parameter.placement.stored_names()) of_base.insert(std::move(name));
  const auto tied = nn::saved_modules(model, loaded).copies;
  std::vector<shard::Slice> out;
  const auto add = [&](shard::Slice slice, const std::string& name) {
    slice.placement.name = kPrefix + name;
    out.push_back(std::move(slice));
  };
  for (const auto& slice : shard::stored_slices(state)) {
    const auto& name = slice.placement.name;
    if (of_base.count(name) == 0) add(slice, name);
    for (const auto& row : tied)
      if (row.copy_of == name) add(slice, row.stored);
  }
  return out;
}

FileDigest save_adapters(const std::string& folder, const std::vector<shard::Slice>& state, nn::Model& model,
                         const std::map<std::string, std::string>& texts, comm::Mesh& mesh,
                         const std::set<std::string>& loaded) {
  SliceSource source(adapter_slices(state, model, loaded), mesh);
  return source.write([&] {
    make_folder(folder);
    const auto digest = write_tensors(
        path_in(folder, kAdapterTensors), source.entries(), file_order(source.entries()),
        [&](std::size_t i) { return source.value(i); }, export_metadata());
    write_texts(folder, texts);
    return digest;
  });
}

at::Tensor merged(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale) {
  const auto wide = at::promote_types(weight.scalar_type(), at::kFloat);
  return weight.to(wide) + at::matmul(b.to(wide), a.to(wide)) * scale;
}

void save_merged(const std::string& folder, const std::vector<shard::Slice>& state, nn::Model& model,
                 const std::string& adapters, const std::map<std::string, std::string>& texts, comm::Mesh& mesh,
                 const ExportFormat& format) {
  std::map<std::string, const nn::Linear*> layers;  // by the name of their weight
  for (const auto* layer : nn::adapted_layers(model)) layers[layer->path() + ".weight"] = layer;
  const auto names = other_tensors(model).optional;
  std::vector<shard::Slice> kept;
  std::set<std::string> transposed;
  for (const auto& slice : state) {
    if (slice.placement.stored_transposed) transposed.insert(slice.placement.name);
    if (names.count(slice.placement.name) == 0) kept.push_back(slice);
  }
  std::unique_ptr<const SafeTensors> trained;
  on_first_rank(mesh.world(), [&] { trained = std::make_unique<const SafeTensors>(adapters); });
  save_weights(folder, kept, texts, mesh, format, [&](const std::string& name, const at::Tensor& full) {
    if (trained->tensors().contains(kPrefix + name)) {
      const auto own = trained->read(kPrefix + name);
      return transposed.count(name) != 0 ? own.t() : own;
    }
    const auto layer = layers.find(name);
    return layer == layers.end() ? full : merged_layer(full, *layer->second, *trained);
  });
}

}  // namespace trireme::checkpoint
