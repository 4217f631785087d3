#include "core/checkpoint/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/weights_source.h"
#include "core/nn/block.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

bool in_head(const std::string& name, const std::string& head_prefix) {
  return !head_prefix.empty() && name.starts_with(head_prefix);
}

/// The prefix that the file's names lack compared to the model's: usually ""; "vit." for a base model.
std::string missing_prefix(const WeightsSource& source, const std::vector<nn::Parameter>& parameters,
                           const std::string& head_prefix) {
  std::string prefix;
  for (const auto& parameter : parameters) {
    if (in_head(parameter.name, head_prefix)) continue;
    if (source.file_of(parameter.name) != nullptr) return "";
    const auto first = parameter.name.substr(0, parameter.name.find('.') + 1);
    if (first.empty() || (!prefix.empty() && prefix != first)) return "";
    prefix = first;
    if (source.file_of(parameter.name.substr(prefix.size())) == nullptr) return "";
  }
  return prefix;
}

struct Fit {
  const nn::Parameter* parameter;
  const WeightsFile* file;
  std::string name;                                           ///< name in the file
  std::function<at::Tensor(const at::Tensor&)> conversion{};  ///< null: the file's tensor is used as it is
  /// This rank's slice.
  [[nodiscard]] at::Tensor values() const {
    const auto& placement = parameter->placement;
    if (!conversion) return file->read(name, placement);
    const auto whole = shard::Placement::whole(placement.name, file->info(name).shape);
    return placement.slice(conversion(file->read(name, whole)).contiguous());
  }
};

/// If a value is not finite, neither is the sum. A sum may also overflow, so only then is each value checked.
bool all_finite(const at::Tensor& values) {
  return values.numel() == 0 || std::isfinite(values.sum().item<double>()) || at::isfinite(values).all().item<bool>();
}

/// Describes why the file's tensor does not fit this parameter; "" if it fits.
std::string misfit(const TensorInfo& info, const nn::Parameter& parameter) {
  if (info.shape != parameter.placement.shape)
    return fmt::format("{} [{}] (the file has [{}])", parameter.name, fmt::join(parameter.placement.shape, ", "),
                       fmt::join(info.shape, ", "));
  if (!c10::isFloatingType(info.dtype))
    return fmt::format("{} (the file has dtype {})", parameter.name, c10::getDtypeNames(info.dtype).first);
  return "";
}

/// Reads the buffers that the file has, and warns of the others. Returns their names in the file.
std::vector<std::string> fill_buffers(const WeightsSource& source, const std::vector<shard::Slice>& buffers,
                                      const std::string& prefix, const std::string& path, const Log& log) {
  std::vector<std::string> names, missing;
  for (const auto& [placement, value] : buffers) {
    auto name = placement.name.starts_with(prefix) ? placement.name.substr(prefix.size()) : placement.name;
    const auto* file = source.file_of(name);
    const bool fits = file != nullptr && file->info(name).shape == placement.shape &&
                      c10::isFloatingType(file->info(name).dtype) == value.is_floating_point();
    if (fits)
      at::Tensor(value).copy_(file->read(name, placement));
    else
      missing.push_back(placement.name);
    names.push_back(std::move(name));
  }
  if (!missing.empty())
    log.warn("{}: {} of this model {} missing or of another shape or type, and start{} from the model's own values: {}",
             path, text::quantity(static_cast<std::int64_t>(missing.size()), "buffer"),
             missing.size() == 1 ? "is" : "are", missing.size() == 1 ? "s" : "", text::first_few(missing));
  return names;
}

}  // namespace

OtherTensors other_tensors(nn::Model& model) {
  OtherTensors out{.conversion = [&model](const std::string& name, at::IntArrayRef from,
                                          at::IntArrayRef to) { return model.conversion(name, from, to); },
                   .remote = nn::remote_declarations(model),
                   .buffers = nn::buffers(model)};
  for (auto& buffer : nn::remote_buffers(model)) out.buffers.push_back(std::move(buffer));
  return out;
}

std::string beside_weights(const std::string& folder_or_file, const std::string& name) {
  return (fs::path(find_weights(folder_or_file)).parent_path() / name).string();
}

nlohmann::json read_beside_weights(const std::string& folder_or_file, const std::string& name) {
  const auto path = beside_weights(folder_or_file, name);
  if (!fs::exists(path)) return nullptr;
  return read_json(path);
}

bool has_weights_under(const std::string& folder_or_file, const std::string& prefix) {
  const auto names = WeightsSource(find_weights(folder_or_file)).names();
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(prefix); });
}

void load_weights(const std::string& folder_or_file, const std::vector<nn::Parameter>& local_parameters,
                  const std::string& head_prefix, const Log& log, const OtherTensors& others) {
  const auto path = find_weights(folder_or_file);
  const WeightsSource source(path);
  auto parameters = local_parameters;
  for (const auto& other : others.remote) parameters.push_back({other.name, {}, other.placement});
  const auto prefix = missing_prefix(source, parameters, head_prefix);
  std::vector<Fit> fits;
  std::vector<std::string> missing, misfits, newly_initialized, converted;
  std::set<std::string> known;
  for (auto& parameter : parameters) {
    const bool head = in_head(parameter.name, head_prefix);
    const auto name = head ? parameter.name : parameter.name.substr(prefix.size());
    known.insert(name);
    const auto* file = source.file_of(name);
    if (file == nullptr) {
      (head ? newly_initialized : missing).push_back(parameter.name);
      continue;
    }
    const auto info = file->info(name);
    const auto& shape = parameter.placement.shape;
    Fit fit{&parameter, file, name};
    if (info.shape != shape && c10::isFloatingType(info.dtype) && others.conversion)
      fit.conversion = others.conversion(parameter.name, info.shape, shape);
    if (fit.conversion)
      converted.push_back(
          fmt::format("{} from [{}] to [{}]", parameter.name, fmt::join(info.shape, ", "), fmt::join(shape, ", ")));
    if (const auto wrong = fit.conversion ? "" : misfit(info, parameter); !wrong.empty())
      (head ? newly_initialized : misfits).push_back(wrong);
    else
      fits.push_back(std::move(fit));
  }
  if (!missing.empty() || !misfits.empty()) {
    std::string text;
    if (!missing.empty())
      text += fmt::format("; {} missing: {}", text::quantity(static_cast<std::int64_t>(missing.size()), "tensor"),
                          text::first_few(missing));
    if (!misfits.empty()) text += fmt::format("; {} do not fit: {}", misfits.size(), text::first_few(misfits));
    if (!fs::exists(beside_weights(path, kModelConfig)))
      text += "; there is no config.json beside them, so the model has the sizes of [model]";
    throw CheckpointError(
        fmt::format("{}: these are not weights of this model{}; check [model], or leave model.weights empty to start "
                    "from new weights",
                    path, text));
  }

  const at::NoGradGuard no_grad;
  for (const auto& fit : fits) {
    const auto* parameter = fit.parameter;
    if (parameter - parameters.data() >= static_cast<std::ptrdiff_t>(local_parameters.size()))
      continue;  // a remote parameter
    TRIREME_CHECK(parameter->value.defined() && !parameter->value.is_meta() &&
                      parameter->value.sizes().vec() == parameter->placement.local_shape(),
                  "{}: has no memory of its placement's local shape", parameter->name);
    const auto values = fit.values();
    if (!all_finite(values))
      throw NonFiniteError(
          fmt::format("{}: tensor \"{}\" contains a NaN or an infinity: the training that wrote these weights "
                      "diverged; use earlier ones",
                      path, fit.name));
    parameter->value.copy_(values);
  }
  for (auto& name : fill_buffers(source, others.buffers, prefix, path, log)) known.insert(std::move(name));
  if (!converted.empty()) log.note("weights  {}: interpolated: {}", path, text::first_few(converted));
  if (!newly_initialized.empty())
    log.note("weights  {}: the head is newly initialized: {}", path, text::first_few(newly_initialized));
  std::vector<std::string> unused;
  for (auto& name : source.names())
    if (known.count(name) == 0) unused.push_back(std::move(name));
  if (!unused.empty())
    log.warn("{}: {} not in this model, ignored: {}", path,
             text::quantity(static_cast<std::int64_t>(unused.size()), "tensor"), text::first_few(unused));
}

FileDigest save_weights(const std::string& folder, const std::vector<shard::Slice>& weights,
                        const std::map<std::string, std::string>& texts, comm::Mesh& mesh) {
  const bool writes = mesh.world().rank() == 0;
  if (writes) make_folder(folder);
  const auto digest = write_slices((fs::path(folder) / kModelTensors).string(), weights, mesh, {{"format", "pt"}});
  if (writes)
    for (const auto& [name, text] : texts) write_file((fs::path(folder) / name).string(), text);
  return digest;
}

}  // namespace trireme::checkpoint
