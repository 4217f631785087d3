#include "core/checkpoint/weights/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/planned_device.h"
#include "core/base/text.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/weights/redundant_tensors.h"
#include "core/checkpoint/weights/stored_names.h"
#include "core/checkpoint/weights/weights_source.h"
#include "core/nn/block.h"
#include "core/nn/layers/lora.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// The whole stored tensor, whatever its shape, oriented as the parameter with this placement is.
shard::Placement whole(const StoredTensor& stored, const shard::Placement& placement) {
  auto out = shard::Placement::whole(placement.name, stored.info().shape);
  if (placement.stored_transposed && out.shape.size() == 2) {
    std::swap(out.shape[0], out.shape[1]);
    out.stored_transposed = true;
  }
  return out;
}

/// A parameter and its tensor in the file.
struct Fit {
  const nn::Parameter* parameter;
  StoredTensor stored;
  nn::Conversion conversion;  ///< empty: the file's tensor is used as it is
  /// This rank's slice.
  [[nodiscard]] at::Tensor values() const {
    const auto& placement = parameter->placement;
    if (!conversion) return stored.read(placement);
    return placement.slice(conversion.apply(stored.file->read(stored.name, whole(stored, placement))).contiguous());
  }
};

/// Which parameters the file has, and what is said about the others.
struct Fits {
  std::vector<Fit> fits;
  std::vector<std::string> missing, misfits, newly_initialized;
  std::map<std::string, std::vector<std::string>> converted;  ///< by what was done
  std::set<std::string> known;                                ///< names in the file
};

/// If a value is not finite, neither is the sum. A sum may also overflow, so only then is each value checked.
bool all_finite(const at::Tensor& values) {
  return values.numel() == 0 || std::isfinite(values.sum().item<double>()) || at::isfinite(values).all().item<bool>();
}

/// Describes why the file's tensor does not fit this parameter; "" if it fits.
std::string misfit(const StoredTensor& stored, const nn::Parameter& parameter) {
  const auto info = stored.info();
  const auto own_name = parameter.name.ends_with(stored.name) || stored.name.ends_with(parameter.name);
  const auto name = own_name ? "" : stored.name + " ";
  if (info.shape != stored.shape_for(parameter.placement))
    return fmt::format("{} [{}] (the file has {}[{}]{})", parameter.name,
                       fmt::join(parameter.placement.stored_shape(), ", "), name, fmt::join(info.shape, ", "),
                       stored.parts == 1 ? "" : fmt::format(" for {} such tensors", stored.parts));
  if (!c10::isFloatingType(info.dtype))
    return fmt::format("{} (the file has {}dtype {})", parameter.name, name, c10::getDtypeNames(info.dtype).first);
  return "";
}

Fits fit(const std::vector<nn::Parameter>& parameters, const StoredNames& names, const std::string& head_prefix,
         const OtherTensors& others) {
  Fits out;
  for (const auto& parameter : parameters) {
    const bool head = !head_prefix.empty() && parameter.name.starts_with(head_prefix);
    const auto& shape = parameter.placement.shape;
    Fit found{&parameter, names.find(parameter.name), {}};
    out.known.insert(found.stored.name);
    if (others.unread.count(parameter.name) != 0) continue;
    if (found.stored.file == nullptr && others.optional.count(parameter.name) != 0) continue;
    if (found.stored.file == nullptr) {
      (head ? out.newly_initialized : out.missing)
          .push_back(names.naming() == nullptr ? parameter.name
                                               : fmt::format("{} ({})", parameter.name, found.stored.name));
      continue;
    }
    const auto info = found.stored.info();
    if (found.stored.parts == 1 && c10::isFloatingType(info.dtype) && others.conversion)
      found.conversion = others.conversion(parameter.name, whole(found.stored, parameter.placement).shape, shape);
    if (found.conversion)
      out.converted[found.conversion.done].push_back(
          info.shape == shape ? parameter.name
                              : fmt::format("{} from [{}] to [{}]", parameter.name, fmt::join(info.shape, ", "),
                                            fmt::join(shape, ", ")));
    if (const auto wrong = found.conversion ? "" : misfit(found.stored, parameter); !wrong.empty())
      (head ? out.newly_initialized : out.misfits).push_back(wrong);
    else
      out.fits.push_back(std::move(found));
  }
  return out;
}

/// @throws CheckpointError when a tensor is missing or does not fit
void check_fits(const Fits& found, const std::string& path, bool are_adapters) {
  if (found.missing.empty() && found.misfits.empty()) return;
  std::string text;
  if (!found.missing.empty())
    text += fmt::format("; {} missing: {}", text::quantity(static_cast<std::int64_t>(found.missing.size()), "tensor"),
                        text::first_few(found.missing));
  if (!found.misfits.empty())
    text += fmt::format("; {} do not fit: {}", found.misfits.size(), text::first_few(found.misfits));
  if (are_adapters)
    throw CheckpointError(
        fmt::format("{}: these are not adapters of this model{}; check rank, target and train of [lora]", path, text));
  if (!fs::exists(beside_weights(path, kModelConfig)))
    text += "; there is no config.json beside them, so the model has the sizes of [model]";
  throw CheckpointError(
      fmt::format("{}: these are not weights of this model{}; check [model], or leave model.weights empty to start "
                  "from new weights",
                  path, text));
}

/// Reads the buffers that the file has, and warns of the others.
void fill_buffers(const StoredNames& names, const std::vector<shard::Slice>& buffers, const std::string& path,
                  const Log& log) {
  std::vector<std::string> missing;
  for (const auto& [placement, value] : buffers) {
    const auto stored = names.find(placement.name);
    const bool fits = stored.file != nullptr && stored.info().shape == placement.shape &&
                      c10::isFloatingType(stored.info().dtype) == value.is_floating_point();
    if (fits)
      at::Tensor(value).copy_(stored.read(placement));
    else
      missing.push_back(placement.name);
  }
  if (!missing.empty())
    log.warn("{}: {} of this model {} missing or of another shape or type, and start{} from the model's own values: {}",
             path, text::quantity(static_cast<std::int64_t>(missing.size()), "buffer"),
             missing.size() == 1 ? "is" : "are", missing.size() == 1 ? "s" : "", text::first_few(missing));
}

/// Fills the parameters of this rank, which come first.
void fill_parameters(const std::vector<Fit>& fits, const nn::Parameter* end, const std::string& path) {
  for (const auto& fit : fits) {
    const auto* parameter = fit.parameter;
    if (parameter >= end) continue;                                                   // a remote parameter
    if (parameter->value.is_meta() && PlannedDevice::current() != nullptr) continue;  // a plan needs no values
    TRIREME_CHECK(parameter->value.defined() && !parameter->value.is_meta() &&
                      parameter->value.sizes().vec() == parameter->placement.local_shape(),
                  "{}: has no memory of its placement's local shape", parameter->name);
    const auto values = fit.values();
    if (!all_finite(values))
      throw NonFiniteError(
          fmt::format("{}: tensor \"{}\" contains a NaN or an infinity: the training that wrote these weights "
                      "diverged; use earlier ones",
                      path, fit.stored.name));
    parameter->value.copy_(values);
  }
}

/// Says how the weights were read where that is not plain.
void describe(const Fits& found, const StoredNames& names, const std::vector<std::string>& unused,
              const std::string& path, const Log& log) {
  if (!names.wrapper().empty())
    log.note("weights  {}: all names begin with \"{}\", which is left out", path, names.wrapper());
  if (names.naming() != nullptr) log.note("weights  {}: the tensors have {}'s names", path, names.naming()->library);
  for (const auto& [done, which] : found.converted) log.note("weights  {}: {}: {}", path, done, text::first_few(which));
  if (!found.newly_initialized.empty())
    log.note("weights  {}: the head is newly initialized: {}", path, text::first_few(found.newly_initialized));
  if (!unused.empty())
    log.warn("{}: {} not in this model, ignored: {}", path,
             text::quantity(static_cast<std::int64_t>(unused.size()), "tensor"), text::first_few(unused));
}

}  // namespace

OtherTensors other_tensors(nn::Model& model) {
  OtherTensors out{.conversion = [&model](const std::string& name, at::IntArrayRef from,
                                          at::IntArrayRef to) { return model.conversion(name, from, to); },
                   .namings = model.namings(),
                   .redundant = model.redundant_tensors(),
                   .remote = nn::remote_declarations(model),
                   .buffers = nn::buffers(model)};
  for (const auto* layer : nn::adapted_layers(model))
    for (const char* part : {"lora_A", "lora_B"}) out.optional.insert(fmt::format("{}.{}.weight", layer->path(), part));
  for (auto& buffer : nn::remote_buffers(model)) out.buffers.push_back(std::move(buffer));
  return out;
}

std::string beside_weights(const std::string& folder_or_file, const std::string& name) {
  return (fs::path(find_weights(folder_or_file)).parent_path() / name).string();
}

nlohmann::json read_beside_weights(const std::string& folder_or_file, const std::string& name) {
  const auto path = beside_weights(folder_or_file, name);
  if (!fs::exists(path)) return nullptr;
  auto values = read_json(path);
  if (!values.is_object()) throw CheckpointError(fmt::format("{}: not a JSON object", path));
  return values;
}

bool has_head(const std::string& folder_or_file, nn::Model& model, const std::string& head_prefix) {
  const WeightsSource source(find_weights(folder_or_file));
  std::vector<std::string> names;
  const auto adapters = other_tensors(model).optional;
  for (const auto& declaration : nn::declarations(model))
    if (adapters.count(declaration.name) == 0)
      for (auto& name : declaration.placement.stored_names()) names.push_back(std::move(name));
  const auto namings = model.namings();
  const StoredNames stored(source, names, head_prefix, namings);
  return std::any_of(names.begin(), names.end(), [&](const auto& name) {
    return name.starts_with(head_prefix) && stored.find(name).file != nullptr;
  });
}

void unstack_as_stored(std::vector<nn::Parameter>& parameters, std::vector<nn::Declaration>& remote) {
  std::vector<nn::Parameter> local;
  std::vector<nn::Declaration> others;
  const auto add_remote = [&](const shard::Placement& whole, const std::set<std::string>& except) {
    for (const auto& name : whole.stored_names())
      if (!except.contains(name))
        others.push_back({name, shard::Placement::whole(name, {whole.shape.begin() + 1, whole.shape.end()}), {}, {}});
  };
  for (auto& parameter : parameters) {
    if (parameter.placement.stored_unstacked.empty()) {
      local.push_back(std::move(parameter));
      continue;
    }
    std::set<std::string> parts;
    for (auto& [placement, value] : shard::stored_slices({parameter.placement, parameter.value})) {
      parts.insert(placement.name);
      local.push_back({placement.name, std::move(value), std::move(placement)});
    }
    add_remote(parameter.placement, parts);
  }
  for (auto& parameter : remote) {
    if (parameter.placement.stored_unstacked.empty())
      others.push_back(std::move(parameter));
    else
      add_remote(parameter.placement, {});
  }
  parameters = std::move(local);
  remote = std::move(others);
}

void load_weights(const std::string& folder_or_file, std::vector<nn::Parameter> local_parameters,
                  const std::string& head_prefix, const Log& log, OtherTensors others) {
  unstack_as_stored(local_parameters, others.remote);
  const auto path = find_weights(folder_or_file);
  const WeightsSource source(path);
  auto parameters = local_parameters;
  for (const auto& other : others.remote) parameters.push_back({other.name, {}, other.placement});
  std::vector<std::string> all_names, needed;
  for (const auto& parameter : parameters) {
    all_names.push_back(parameter.name);
    if (others.optional.count(parameter.name) + others.unread.count(parameter.name) == 0)
      needed.push_back(parameter.name);
  }
  const StoredNames names(source, needed, head_prefix, others.namings);

  auto found = fit(parameters, names, head_prefix, others);
  check_fits(found, path, others.are_adapters);
  std::set<std::string> kinds;
  for (const auto& name : all_names)
    if (head_prefix.empty() || !name.starts_with(head_prefix)) kinds.insert(without_numbers(names.find(name).name));
  for (const auto& buffer : others.buffers) {
    const auto& name = *found.known.insert(names.find(buffer.placement.name).name).first;
    kinds.insert(without_numbers(name));
  }
  std::vector<std::string> unused;
  RedundantTensors redundant(source, names, others.redundant, others.are_adapters);
  for (auto& name : source.names())
    if (found.known.count(name) == 0 && !redundant.covers(name)) unused.push_back(std::move(name));
  redundant.check_adapters();
  check_adapters(unused, path, others.are_adapters);
  check_depth(unused, kinds, path);

  const at::NoGradGuard no_grad;
  redundant.check_copies(local_parameters);
  fill_parameters(found.fits, parameters.data() + local_parameters.size(), path);
  fill_buffers(names, others.buffers, path, log);
  if (!source.entry().empty()) log.note("weights  {}: the tensors under \"{}\"", path, source.entry());
  describe(found, names, unused, path, log);
}

FileDigest save_weights(const std::string& folder, const std::vector<shard::Slice>& weights,
                        const std::map<std::string, std::string>& texts, comm::Mesh& mesh, const ExportFormat& format,
                        const ChangeTensor& change) {
  SliceSource source(weights, mesh, format.dtype, change);
  return source.write([&] {
    return write_model(
        folder, source.entries(), [&](std::size_t i) { return source.value(i); }, format, texts);
  });
}

}  // namespace trireme::checkpoint
