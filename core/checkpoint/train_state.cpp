#include "core/checkpoint/train_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kAverage = "average.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kConfig = "config.toml";
constexpr const char* kBest = "best.safetensors";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kTemporary = ".tmp";

std::string path_in(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

std::string hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

/// The step of a complete checkpoint, parsed from its folder name, or -1.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with("step-")) return -1;
  const auto digits = name.substr(5);
  const bool number = !digits.empty() && digits.size() < 19 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number ? std::stoll(digits) : -1;
}

/// Names in the checkpoints folder; empty if the folder does not exist.
std::vector<std::string> entries(const std::string& root) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) out.push_back(entry.path().filename().string());
  return out;
}

/// Complete checkpoints, newest first.
std::vector<std::string> whole_checkpoints(const std::string& root) {
  auto names = entries(root);
  std::erase_if(names, [](const std::string& name) { return step_of(name) < 0; });
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return names;
}

void remove_leftovers(const std::string& root) {
  std::error_code ignored;
  for (const auto& name : entries(root))
    if (name.starts_with("step-") && name.ends_with(kTemporary)) fs::remove_all(path_in(root, name), ignored);
}

/// Folders that cannot be removed now are retried at the next save; this must not stop the training.
void remove_older(const std::string& root, const std::string& newest, std::int64_t keep) {
  std::int64_t retained = 1;
  for (const auto& name : whole_checkpoints(root)) {
    if (name == newest || retained++ < keep) continue;
    // Rename first: an interrupted removal must not leave a partial checkpoint under a complete one's name.
    std::error_code error;
    fs::rename(path_in(root, name), path_in(root, name + kTemporary), error);
    if (!error) fs::remove_all(path_in(root, name + kTemporary), error);
  }
}

std::string state_text(const TrainRecord& record) {
  const auto& p = record.progress;
  json state{{"format", kFormat},
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
  TRIREME_CHECK(json::parse(text) == state, "a number in the training state is not finite, which JSON cannot store");
  return text;
}

TrainRecord read_record(const std::string& folder) {
  const auto path = path_in(folder, kState);
  TrainRecord record;
  try {
    const auto state = json::parse(read_file(path));
    if (const int format = state.at("format"); format != kFormat)
      throw CheckpointError(fmt::format("{}: format {}, but this version reads format {}", path, format, kFormat));
    const auto& p = state.at("progress");
    record.progress = {p.at("epoch"), p.at("step_in_epoch"), p.at("global_step"), p.at("samples")};
    record.seed = state.at("seed");
    if (!state.at("loss_scale").is_null()) record.loss_scale = state.at("loss_scale").get<std::vector<double>>();
    record.versions = state.at("versions").get<std::map<std::string, std::string>>();
    record.extra = state.at("extra");
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a valid training state: {}", path, json_problem(error)));
  }
  record.config = read_file(path_in(folder, kConfig));
  return record;
}

void verify_file(const std::string& path, std::uint64_t bytes, const std::string& crc, Verify how) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) throw CheckpointError(fmt::format("{}: {}, but the manifest lists it", path, error.message()));
  if (size != bytes)
    throw CheckpointError(fmt::format("{} {}: {} bytes, but the manifest says {}", path,
                                      size < bytes ? "is truncated" : "has grown", size, bytes));
  if (how == Verify::sizes) return;
  if (const auto sum = hex(digest_file(path).crc32); sum != crc)
    throw CheckpointError(fmt::format("{} is damaged: CRC-32 {}, but the manifest says {}", path, sum, crc));
}

void verify(const std::string& folder, Verify how) {
  const auto manifest_path = path_in(folder, kManifest);
  json files;
  try {
    const auto manifest = json::parse(read_file(manifest_path));
    if (const int format = manifest.at("format"); format != kFormat)
      throw CheckpointError(
          fmt::format("{}: format {}, but this version reads format {}", manifest_path, format, kFormat));
    files = manifest.at("files");
    for (const char* name : {kWeights, kOptimizer, kState, kConfig}) static_cast<void>(files.at(name));
    for (const auto& [name, entry] : files.items())
      verify_file(path_in(folder, name), entry.at("bytes").get<std::uint64_t>(), entry.at("crc32").get<std::string>(),
                  how);
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a manifest: {}", manifest_path, json_problem(error)));
  }
}

const std::string& verified(const std::string& folder, Verify how) {
  if (!fs::is_directory(folder)) throw CheckpointError(fmt::format("{}: no such checkpoint folder", folder));
  if (std::error_code error; !fs::exists(path_in(folder, kManifest), error) && !error)
    throw CheckpointError(
        fmt::format("{}: no manifest.json in it, so it is not a complete checkpoint; name a run folder, or a "
                    "folder in its checkpoints/",
                    folder));
  verify(folder, how);
  return folder;
}

}  // namespace

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
    out.push_back({std::move(placement), tensor});
  }
  return out;
}

std::string save_checkpoint(const std::string& run_dir, const CheckpointContents& contents, std::int64_t keep,
                            comm::Mesh& mesh) {
  TRIREME_CHECK(keep >= 1 && contents.record.progress.global_step >= 0, "cannot save a checkpoint: keep {}, step {}",
                keep, contents.record.progress.global_step);
  const auto root = path_in(run_dir, "checkpoints");
  const auto name = fmt::format("step-{:08d}", contents.record.progress.global_step);
  const auto folder = path_in(root, name), temporary = folder + kTemporary;
  const bool writes = mesh.world().rank() == 0;
  try {
    if (writes) {
      make_folder(root);
      remove_leftovers(root);
      make_folder(temporary);
    }
    std::map<std::string, FileDigest> files;
    files[kWeights] = write_slices(path_in(temporary, kWeights), contents.weights, mesh);
    files[kOptimizer] = write_slices(path_in(temporary, kOptimizer), contents.optimizer, mesh);
    if (contents.average) files[kAverage] = write_slices(path_in(temporary, kAverage), *contents.average, mesh);
    if (!writes) return folder;
    files[kState] = write_file(path_in(temporary, kState), state_text(contents.record));
    files[kConfig] = write_file(path_in(temporary, kConfig), contents.record.config);
    for (const auto& [file, text] : contents.texts) files[file] = write_file(path_in(temporary, file), text);
    if (!contents.best.empty()) {
      link_file(contents.best, path_in(temporary, kBest));
      files[kBest] = contents.best_digest;
    }
    json manifest{{"format", kFormat}, {"files", json::object()}};
    for (const auto& [file, digest] : files)
      manifest["files"][file] = {{"bytes", digest.bytes}, {"crc32", hex(digest.crc32)}};
    write_file(path_in(temporary, kManifest), manifest.dump(2) + "\n");
    publish_folder(temporary, folder);
  } catch (...) {
    std::error_code ignored;
    if (writes) fs::remove_all(temporary, ignored);
    throw;
  }
  remove_older(root, name, keep);
  return folder;
}

std::vector<std::string> set_aside_after(const std::string& run_dir, std::int64_t step) {
  const auto root = path_in(run_dir, "checkpoints");
  std::vector<std::string> out;
  for (const auto& name : whole_checkpoints(root)) {
    if (step_of(name) <= step) break;
    auto aside = path_in(root, name + ".aside");
    for (int n = 2; fs::exists(aside); ++n) aside = path_in(root, fmt::format("{}.aside.{}", name, n));
    std::error_code error;
    fs::rename(path_in(root, name), aside, error);
    if (error)
      throw CheckpointError(fmt::format("{}: this checkpoint of a later step cannot be renamed to {}: {}",
                                        path_in(root, name), aside, error.message()));
    out.push_back(aside);
  }
  return out;
}

std::string latest_checkpoint(const std::string& run_dir, const Log& log) {
  const auto root = path_in(run_dir, "checkpoints");
  std::vector<std::string> damaged, why;
  std::string found;
  for (const auto& name : whole_checkpoints(root)) {
    try {
      found = Checkpoint(path_in(root, name)).folder();
      break;
    } catch (const CheckpointError& error) {
      damaged.push_back(name);
      why.emplace_back(error.what());
    }
  }
  if (found.empty() && !damaged.empty())
    throw CheckpointError(
        fmt::format("{}: no checkpoint is intact ({}): {}; restore one of them, or start a new run without --resume",
                    root, text::join(damaged), text::join(why, "; ")));
  for (std::size_t i = 0; i < damaged.size(); ++i) log.warn("{} skipped: {}", damaged[i], why[i]);
  return found;
}

Checkpoint::Checkpoint(const std::string& folder, Verify how)
    : folder_(verified(folder, how)),
      record_(read_record(folder)),
      weights_(path_in(folder, kWeights)),
      optimizer_(path_in(folder, kOptimizer)) {
  const auto path = path_in(folder, kAverage);
  if (std::error_code none; fs::exists(path, none)) average_.emplace(path);
}

std::string Checkpoint::best() const {
  auto path = path_in(folder_, kBest);
  std::error_code none;
  return fs::exists(path, none) ? path : "";
}

void restore_slices(const SafeTensors& file, std::vector<shard::Slice> values, const std::set<std::string>& remote,
                    const char* what, const std::set<std::string>& converted) {
  const auto same_type = [&](const std::string& name, at::ScalarType stored, at::ScalarType here) {
    return stored == here || (converted.count(name) != 0 && c10::isFloatingType(stored) && c10::isFloatingType(here));
  };
  std::vector<std::string> wrong;
  std::set<std::string> known;
  for (const auto& [placement, value] : values) {
    known.insert(placement.name);
    const auto found = file.tensors().find(placement.name);
    if (found == file.tensors().end())
      wrong.push_back(fmt::format("{} is not in the checkpoint", placement.name));
    else if (found->second.shape != placement.stored_shape() ||
             !same_type(placement.name, found->second.dtype, value.scalar_type()))
      wrong.push_back(fmt::format("{} is {} [{}] here and {} [{}] in the checkpoint", placement.name,
                                  c10::getDtypeNames(value.scalar_type()).first,
                                  fmt::join(placement.stored_shape(), ", "),
                                  c10::getDtypeNames(found->second.dtype).first, fmt::join(found->second.shape, ", ")));
  }
  // The name of a parameter or of its optimizer state ("<parameter>.exp_avg").
  const auto of_others = [&](const std::string& name) {
    return remote.count(name) != 0 || remote.count(name.substr(0, name.rfind('.'))) != 0;
  };
  for (const auto& [name, info] : file.tensors())
    if (known.count(name) == 0 && !of_others(name)) wrong.push_back(fmt::format("{} is only in the checkpoint", name));
  if (!wrong.empty())
    throw CheckpointError(
        fmt::format("{}: {} of this run's {} do not match: {}; resume with the model, optimizer and precision that "
                    "wrote it, or start a new run from its weights (model.weights)",
                    file.path(), wrong.size(), what, text::first_few(wrong)));
  const at::NoGradGuard no_grad;
  for (auto& [placement, value] : values) {
    TRIREME_CHECK(value.sizes().vec() == placement.local_shape(), "{}: its shape is not its placement's local shape",
                  placement.name);
    value.copy_(file.read(placement.name, placement));
  }
}

}  // namespace trireme::checkpoint
