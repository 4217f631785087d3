#include "core/checkpoint/train_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/files/output_folder.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/checkpoint_save.h"
#include "core/checkpoint/file_blocks.h"
#include "core/checkpoint/sharded_tensors.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kStateFormat = 1;

template <class... Args>
CheckpointError invalid(const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
  return CheckpointError(
      fmt::format("{}: not a valid training state: {}", path, fmt::format(text, std::forward<Args>(args)...)));
}

std::int64_t integer(const nlohmann::json& value, const char* key, const std::string& path) {
  if (!value.is_number()) throw invalid(path, "{} is a JSON {}", key, value.type_name());
  if (!is_int64(value)) throw invalid(path, "{} is {}, which is not an integer below 2^63", key, json_text(value));
  return value.get<std::int64_t>();
}

std::vector<double> finite_numbers(const nlohmann::json& from, const char* key, const std::string& path) {
  std::vector<double> out;
  if (!from.is_array()) throw invalid(path, "{} is a JSON {}", key, from.type_name());
  for (const auto& value : from) {
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      throw invalid(path, "{} has a {}", key, json_text(value));
    out.push_back(value.get<double>());
  }
  return out;
}

TrainRecord read_state(const nlohmann::json& from, const std::string& path) {
  if (!from.is_object()) throw invalid(path, "a JSON {} in place of an object", from.type_name());
  if (const auto format = count_in(from, "format", path); format != kStateFormat)
    throw CheckpointError(fmt::format("{}: format {}, but this version reads format {}", path, format, kStateFormat));
  TrainRecord record;
  const auto& p = from.at("progress");
  record.progress = {count_in(p, "epoch", path), count_in(p, "step_in_epoch", path), count_in(p, "global_step", path),
                     count_in(p, "samples", path)};
  record.seed = integer(from.at("seed"), "seed", path);
  if (const auto& scale = from.at("loss_scale"); !scale.is_null())
    record.loss_scale = finite_numbers(scale, "loss_scale", path);
  for (const auto& [what, version] : from.at("versions").items()) record.versions[what] = version;
  record.extra = from.at("extra");
  return record;
}

/// Not while another process saves in the run's folder.
void restore_replaced_unless_owned(const std::string& run_dir) {
  if (!has_replaced(run_dir)) return;
  try {
    const OutputFolder owned(run_dir);
    restore_replaced(run_dir);
  } catch (const Error&) {
    // Another process is replacing one right now, or the folder is read-only.
  }
}

}  // namespace

TrainRecord parse_state(const std::string& text, const std::string& path) {
  try {
    return read_state(parse_json(text), path);
  } catch (const nlohmann::json::exception& error) {
    throw invalid(path, "{}", json_problem(error));
  }
}

std::int64_t count_in(const nlohmann::json& object, const char* key, const std::string& path) {
  const auto out = integer(object.at(key), key, path);
  if (out < 0) throw invalid(path, "{} is {}", key, out);
  return out;
}

std::string state_text(const TrainRecord& record) {
  const auto& p = record.progress;
  json state{{"format", kStateFormat},
             {"progress",
              {{"epoch", p.epoch},
               {"step_in_epoch", p.step_in_epoch},
               {"global_step", p.global_step},
               {"samples", p.samples}}},
             {"seed", record.seed},
             {"loss_scale", nullptr},
             {"versions", record.versions},
             {"extra", record.extra}};
  if (record.loss_scale) state["loss_scale"] = *record.loss_scale;
  auto text = json_text(state, 2) + "\n";
  TRIREME_CHECK(parse_json(text) == state, "a number in the training state is not finite, which JSON cannot store");
  return text;
}

TrainRecord read_record(const std::string& folder) {
  const auto path = path_in(folder, kState);
  auto record = parse_state(read_file(path), path);
  record.config = read_file(path_in(folder, kConfig));
  return record;
}

std::vector<shard::Slice> weights_of(const std::vector<nn::Parameter>& parameters) {
  std::vector<shard::Slice> out;
  for (const auto& parameter : parameters) {
    auto placement = parameter.placement;
    placement.name = parameter.name;
    out.push_back({std::move(placement), parameter.value});
  }
  return out;
}

std::vector<shard::Slice> states_of(optim::Optimizer& optimizer, const std::vector<nn::Parameter>& parameters) {
  std::map<std::string, const shard::Placement*> placements;
  for (const auto& parameter : parameters) placements[parameter.name] = &parameter.placement;
  std::vector<shard::Slice> out;
  for (const auto& [parameter, key, tensor] : optimizer.state()) {
    const auto name = parameter + "." + key;
    const auto found = placements.find(parameter);
    TRIREME_CHECK(found != placements.end(), "optimizer state for \"{}\", which is not a parameter", parameter);
    auto placement = *found->second;
    if (tensor.sizes().vec() != placement.local_shape()) {
      placement = shard::Placement::whole(name, tensor.sizes().vec());
      placement.stage_axis = found->second->stage_axis;
      placement.copy = found->second->copy;
    }
    placement.name = name;
    placement.stored_unstacked.clear();  // no other library's files hold it
    out.push_back({std::move(placement), tensor});
  }
  return out;
}

std::string save_checkpoint(const std::string& run_dir, const CheckpointContents& contents, std::int64_t keep,
                            comm::Mesh& mesh) {
  return CheckpointSave(run_dir, contents, keep, mesh, find_storage(run_dir, mesh.world())).run().folder;
}

std::string latest_checkpoint(const std::string& run_dir, const Log& log, Verify how, Damages& known) {
  restore_replaced_unless_owned(run_dir);
  std::vector<std::string> damaged, names, why;  // folders, newest first
  std::string found;
  for (const auto& folder : complete_checkpoints(run_dir)) {
    try {
      if (!known.contains(folder)) {
        found = Checkpoint(folder, how).folder();
        break;
      }
    } catch (const CheckpointError& error) {
      known[folder].why = error.what();
    }
    damaged.push_back(folder);
    names.push_back(fs::path(folder).filename().string());
    why.push_back(known[folder].why);
  }
  for (const auto& folder : damaged)
    if (found.empty() && known[folder].only_best) found = folder;
  if (found.empty() && !damaged.empty())
    throw CheckpointError(
        fmt::format("{}: no checkpoint is intact ({}): {}; restore one of them, or start a new run (--fresh)",
                    path_in(run_dir, "checkpoints"), text::join(names), text::join(why, "; ")));
  for (std::size_t i = 0; i < damaged.size(); ++i)
    if (auto& damage = known[damaged[i]]; !damage.only_best && !std::exchange(damage.was_said, true))
      log.warn("{} skipped: {}", names[i], why[i]);
  return found;
}

Checkpoint::Checkpoint(const std::string& folder, Verify how) : folder_(folder) {
  const auto manifest = verified_manifest(folder, how, Use::resume);
  record_ = read_record(folder);
  weights_ = open_group(folder, manifest, kWeights);
  optimizer_ = open_group(folder, manifest, kOptimizer);
  average_ = open_group(folder, manifest, kAverage);
  if (const auto best = manifest.files.find(kBest); best != manifest.files.end()) best_digest_ = best->second;
  best_is_everywhere_ = !manifest.host_of.contains(kBest);
}

std::unique_ptr<WeightsFile> open_checkpoint_weights(const std::string& folder) {
  const auto manifest = verified_manifest(folder, Verify::sizes, Use::weights);
  return open_group(folder, manifest, evaluated_group(manifest));
}

TrainRecord verify_checkpoint_weights(const std::string& folder, Verify how) {
  static_cast<void>(verified_manifest(folder, how, Use::weights));
  return read_record(folder);
}

std::string Checkpoint::best() const {
  auto path = path_in(folder_, kBest);
  std::error_code none;
  return fs::exists(path, none) ? path : "";
}

void Checkpoint::verify_best(int index, int count) const {
  if (best_digest_.bytes == 0) return;
  if (!best_is_everywhere_) {  // only rank 0 uses it
    if (index > 0) return;
    count = 1;
    if (best().empty())
      throw MissingPart(
          fmt::format("{}: lacks {}, which another host has; copy it into this folder, or resume with rank "
                      "0 on that host",
                      folder_, kBest));
  }
  FileBlocks(path_in(folder_, kBest), best_digest_).verify_part(index, count);
}

void check_slices(const WeightsFile& file, const std::vector<shard::Slice>& values, const std::set<std::string>& remote,
                  const char* what, const std::set<std::string>& converted) {
  const auto same_type = [&](const std::string& name, at::ScalarType stored, at::ScalarType here) {
    return stored == here || (converted.count(name) != 0 && c10::isFloatingType(stored) && c10::isFloatingType(here));
  };
  std::vector<std::string> wrong;
  const auto names = file.names();
  const std::set<std::string> stored(names.begin(), names.end());
  std::set<std::string> known;
  for (const auto& [placement, value] : values) {
    const auto stored_names = placement.stored_names();
    known.insert(stored_names.begin(), stored_names.end());
    if (stored.count(stored_names.front()) == 0) {
      wrong.push_back(fmt::format("{} is not in the checkpoint", placement.name));
      continue;
    }
    const auto [dtype, shape] = file.info(placement.name);
    if (shape != placement.stored_shape() || !same_type(placement.name, dtype, value.scalar_type()))
      wrong.push_back(fmt::format("{} is {} [{}] here and {} [{}] in the checkpoint", placement.name,
                                  c10::getDtypeNames(value.scalar_type()).first,
                                  fmt::join(placement.stored_shape(), ", "), c10::getDtypeNames(dtype).first,
                                  fmt::join(shape, ", ")));
  }
  // The name of a parameter or of its optimizer state ("<parameter>.exp_avg").
  const auto of_others = [&](const std::string& name) {
    return remote.count(name) != 0 || remote.count(name.substr(0, name.rfind('.'))) != 0;
  };
  for (const auto& name : names)
    if (known.count(name) == 0 && !of_others(name)) wrong.push_back(fmt::format("{} is only in the checkpoint", name));
  if (!wrong.empty())
    throw CheckpointError(
        fmt::format("{}: {} of this run's {} do not match: {}; resume with the model, optimizer and precision that "
                    "wrote it, or start a new run from its weights (model.weights)",
                    file.path(), wrong.size(), what, text::first_few(wrong)));
}

void restore_slices(const WeightsFile& file, std::vector<shard::Slice> values, const std::set<std::string>& remote,
                    const char* what, const std::set<std::string>& converted) {
  check_slices(file, values, remote, what, converted);
  fill_slices(file, std::move(values));
}

void fill_slices(const WeightsFile& file, std::vector<shard::Slice> values) {
  const at::NoGradGuard no_grad;
  for (auto& [placement, value] : values) {
    TRIREME_CHECK(value.sizes().vec() == placement.local_shape(), "{}: its shape is not its placement's local shape",
                  placement.name);
    value.copy_(file.read(placement.name, placement));
  }
}

}  // namespace trireme::checkpoint
