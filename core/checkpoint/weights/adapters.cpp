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

/// PEFT's names of a model's tensors: in its files, and in its models, where they have the name of the adapters in
/// them; each with our names of the modules, and with transformers' if the model's namings have them.
std::vector<nn::Naming> peft_namings(const std::vector<nn::Naming>& of_model) {
  using Modules = std::vector<std::pair<std::string, std::string>>;  // patterns of ours and of theirs
  std::vector<nn::Naming> out;
  const auto add = [&](const Modules& modules) {
    nn::Naming files{"PEFT", {}}, model{"PEFT", {}};
    for (const auto& [ours, theirs] : modules) {
      for (const std::string matrix : {"lora_A", "lora_B"}) {
        const auto name = fmt::format("{}.{}.weight", ours, matrix);
        files.names.push_back({name, fmt::format("{}{}.{}.weight", kPrefix, theirs, matrix)});
        model.names.push_back({name, fmt::format("{}{}.{}.default.weight", kPrefix, theirs, matrix)});
      }
      files.names.push_back({ours + ".*", fmt::format("{}{}.*", kPrefix, theirs)});
      model.names.push_back({ours + ".*", fmt::format("{}{}.modules_to_save.default.*", kPrefix, theirs)});
    }
    files.names.push_back({"*", std::string(kPrefix) + "*"});  // of a parameter in no module
    out.push_back(std::move(files));
    out.push_back(std::move(model));
  };
  add({{"**", "**"}});
  for (const auto& naming : of_model) {
    if (!naming.of_modules) continue;
    Modules modules;
    for (const auto& row : naming.names) modules.emplace_back(row.parameter, row.stored);
    modules.emplace_back("**", "**");
    add(modules);
  }
  return out;
}

/// The tensors of a model by whether the file holds them.
class AdapterFile {
 public:
  AdapterFile(const std::string& file, const std::vector<nn::Naming>& of_model)
      : source_(file), namings_(peft_namings(of_model)) {}
  [[nodiscard]] bool holds(const std::string& name) const {
    return std::any_of(namings_.begin(), namings_.end(), [&](const nn::Naming& naming) {
      const auto stored = naming.find(name);
      return stored && source_.file_of(stored->stored) != nullptr;
    });
  }

 private:
  WeightsSource source_;
  std::vector<nn::Naming> namings_;
};

/// Names of the parameters and buffers that the file does not hold.
std::set<std::string> not_in(const std::string& file, const std::vector<nn::Parameter>& parameters,
                             const OtherTensors& others) {
  const AdapterFile adapters(file, others.namings);
  std::set<std::string> out;
  const auto look_up = [&](const std::string& name) {
    if (!adapters.holds(name)) out.insert(name);
  };
  for (const auto& parameter : parameters) look_up(parameter.name);
  for (const auto& parameter : others.remote) look_up(parameter.name);
  for (const auto& buffer : others.buffers) look_up(buffer.placement.name);
  return out;
}

/// The name in the file of a tensor of the model; runs of earlier versions have the model's own names.
std::string name_in(const SafeTensors& adapters, const nn::Model& model, const std::string& name) {
  const auto stored = kPrefix + model.name_in_modules(name);
  return adapters.tensors().contains(stored) ? stored : kPrefix + name;
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
  of_adapters.namings = peft_namings(others.namings);
  of_adapters.are_adapters = true;
  of_adapters.optional = not_in(file, parameters, others);
  std::erase_if(of_adapters.buffers,
                [&](const shard::Slice& buffer) { return of_adapters.optional.count(buffer.placement.name) != 0; });
  for (const auto& adapter : others.optional) of_adapters.optional.erase(adapter);
  load_weights(file, parameters, "", log, of_adapters);
}

std::set<std::string> parameters_in(const std::string& adapters, nn::Model& model) {
  const AdapterFile file(existing_adapters(adapters), model.namings());
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
    slice.placement.name = kPrefix + model.name_in_modules(name);
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
    const auto read = [&](const std::string& tensor) { return trained->read(name_in(*trained, model, tensor)); };
    if (trained->tensors().contains(name_in(*trained, model, name)))
      return transposed.count(name) != 0 ? read(name).t() : read(name);
    const auto found = layers.find(name);
    if (found == layers.end()) return full;
    const auto& layer = *found->second;
    return merged(full, read(layer.path() + ".lora_A.weight"), read(layer.path() + ".lora_B.weight"),
                  layer.adapter()->scale);
  });
}

}  // namespace trireme::checkpoint
