#include "core/checkpoint/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/comm/axes.h"
#include "core/config/table.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

bool has(const fs::path& folder, const char* name) {
  std::error_code none;
  return fs::exists(folder / name, none);
}

/// NAME of NAME.tmp, NAME.aside and NAME.aside.2, with what the ending means.
std::pair<std::string, Completeness> parsed_name(const std::string& folder) {
  const auto name = fs::path(folder).filename().string();
  if (name.ends_with(kTemporary)) return {name.substr(0, name.find('.')), Completeness::incomplete};
  if (const auto at = name.find(kAside); at != name.npos) return {name.substr(0, at), Completeness::set_aside};
  return {name, Completeness::complete};
}

std::vector<std::pair<std::string, std::string>> layout_of(const std::string& config, const std::string& source) {
  std::vector<std::pair<std::string, std::string>> out;
  try {
    const auto root = config::parse_text(config, source);
    if (const auto plugin = root.value<std::string>("parallel", "plugin")) out.emplace_back("plugin", *plugin);
    const auto add = [&](const std::string& key, const std::vector<std::string>& options) {
      auto size = root.value<std::int64_t>("parallel", key).value_or(0);
      if (const auto* plugins = root.table("plugin"))
        for (const auto& [name, section] : plugins->tables)
          for (const auto& option : options)
            size = std::max(size, plugins->value<std::int64_t>(name, option).value_or(0));
      if (size > (key == "zero" ? 0 : 1)) out.emplace_back(key, std::to_string(size));
    };
    for (const auto& axis : comm::axis_kinds())
      if (!axis.key.empty()) add(axis.key, {axis.option});
    add("zero", {"zero_stage", "stage"});
  } catch (const ConfigError&) {
    return {};  // a listing shows what it can
  }
  return out;
}

/// The first problem of the files that the use needs, and of the best weights, without which a resume loses something;
/// "" when all have their sizes.
std::string problem_for(const std::string& folder, const Manifest& manifest, Use use) {
  auto names = needed_files(manifest, use);
  if (use == Use::resume && manifest.files.contains(kBest)) names.insert(kBest);
  for (const auto& name : names) {
    const auto listed = manifest.files.find(name);
    if (listed == manifest.files.end()) return fmt::format("{}/{}: lists no {}", folder, kManifest, name);
    if (is_elsewhere(folder, manifest, name)) continue;
    auto problem = file_problem(path_in(folder, name), listed->second, Verify::sizes);
    if (!problem.empty()) return problem;
  }
  return "";
}

void check_files(CheckpointSummary& out) {
  try {
    const auto manifest = read_manifest(out.folder);
    out.problem = problem_for(out.folder, manifest, Use::resume);
    if (!out.problem.empty())
      out.state =
          problem_for(out.folder, manifest, Use::weights).empty() ? Completeness::weights_only : Completeness::damaged;
    const auto elsewhere = missing_parts(out.folder, manifest);
    if (out.problem.empty() && !elsewhere.empty()) {
      out.state = Completeness::part;
      out.problem = fmt::format("{}: not here: {}", out.folder, elsewhere);
    }
  } catch (const CheckpointError& error) {
    out.state = Completeness::damaged;
    out.problem = error.what();
  }
}

void count_files(CheckpointSummary& out) {
  std::set<int> ranks;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(out.folder, none)) {
    if (const auto size = entry.file_size(none); !none) out.bytes += size;
    const auto name = entry.path().filename().string();
    const bool is_full = name == "weights.safetensors" || name == "optimizer.safetensors" ||
                         name == "average.safetensors";  // of format 1, by rank 0
    const int rank = is_full ? 0 : rank_of_file(name);
    if (rank < 0) continue;
    ++out.files;
    ranks.insert(rank);
  }
  out.ranks = static_cast<std::int64_t>(ranks.size());
}

}  // namespace

const char* name_of(Completeness state) {
  static constexpr std::array kNames{"complete", "weights only", "damaged", "part", "incomplete", "set aside"};
  return kNames.at(static_cast<std::size_t>(state));
}

CheckpointSummary summarize_checkpoint(const std::string& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none)) throw CheckpointError(fmt::format("{}: no such checkpoint folder", folder));
  CheckpointSummary out;
  out.folder = folder;
  const auto [name, by_name] = parsed_name(folder);
  out.step = step_of_folder(name);
  count_files(out);
  if (by_name != Completeness::incomplete) check_files(out);
  if (by_name != Completeness::complete && out.state == Completeness::complete) out.state = by_name;
  try {
    const auto record = read_record(folder);
    out.progress = record.progress;
    out.layout = layout_of(record.config, folder + "/" + kConfig);
  } catch (const CheckpointError&) {
    // An incomplete one has no record yet; of a damaged one the problem is known.
  }
  const auto manifest = fs::path(folder) / kManifest;
  out.written = fs::last_write_time(fs::exists(manifest, none) ? manifest : fs::path(folder), none);
  return out;
}

std::vector<CheckpointSummary> list_checkpoints(const std::string& run_dir) {
  std::vector<CheckpointSummary> out;
  for (const auto& folder : all_checkpoints(run_dir))
    if (step_of_folder(parsed_name(folder).first) >= 0) out.push_back(summarize_checkpoint(folder));
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.step != b.step ? a.step > b.step : a.folder.size() < b.folder.size();
  });
  return out;
}

std::vector<std::string> find_checkpoints(const std::string& run_or_checkpoint) {
  auto path = fs::path(run_or_checkpoint).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code none;
  if (!fs::exists(path, none)) throw CheckpointError(fmt::format("{}: no such run or checkpoint", run_or_checkpoint));
  if (!fs::is_directory(path, none)) {
    const auto folder = checkpoint_of_part(path.string());
    throw CheckpointError(fmt::format(
        "{}: {}; name {}", run_or_checkpoint, folder.empty() ? "a file" : "one rank's part of a checkpoint",
        folder.empty() ? "a run's folder, or a checkpoint's (trireme inspect shows a file)" : "the folder " + folder));
  }
  if (has(path, kManifest)) return {path.string()};
  const auto name = path.filename().string();
  if (name.starts_with("step-") && name.ends_with(kTemporary))
    throw CheckpointError(fmt::format(
        "{}: an incomplete checkpoint, whose writing was interrupted or goes on; name another one", run_or_checkpoint));
  const auto run = name == "checkpoints" ? path.parent_path() : path;
  auto found = complete_checkpoints(run.empty() ? "." : run.string());
  if (!found.empty()) return found;
  throw CheckpointError(
      has(path, "checkpoints") || name == "checkpoints"
          ? fmt::format("{}: this run has no complete checkpoint", run_or_checkpoint)
          : fmt::format("{}: neither a run's folder, which has checkpoints/, nor a checkpoint, which has manifest.json",
                        run_or_checkpoint));
}

IntactCheckpoint find_intact_checkpoint(const std::string& run_or_checkpoint, Use use, Verify how) {
  const auto all = find_checkpoints(run_or_checkpoint);
  IntactCheckpoint found;
  std::vector<std::string> why;
  for (const auto& folder : all) {
    try {
      static_cast<void>(verified_manifest(folder, how, use));
      static_cast<void>(read_record(folder));
      found.folder = folder;
      return found;
    } catch (const CheckpointError& error) {
      if (all.size() == 1) throw;
      why.emplace_back(error.what());
      found.skipped.push_back(
          fmt::format("{} skipped: {}", fs::path(folder).filename().string(), text::printable(error.what())));
    }
  }
  throw CheckpointError(
      fmt::format("{}: none of the run's {} checkpoints is intact: {}; restore the files of one of them from a copy",
                  run_or_checkpoint, all.size(), text::join(why, "; ")));
}

}  // namespace trireme::checkpoint
