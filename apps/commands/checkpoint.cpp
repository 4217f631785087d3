// trireme checkpoint ls, verify and export
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands/commands.h"
#include "apps/commands/text_table.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/resume/export_checkpoint.h"
#include "trireme.h"

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointSummary;
using nlohmann::json;

std::vector<std::string> list_row(const CheckpointSummary& of) {
  const auto count = [](std::int64_t n) { return n == 0 ? "-" : text::thousands(n); };
  return {fs::path(of.folder).filename().string(),
          of.progress ? std::to_string(of.progress->global_step) : std::to_string(of.step),
          of.progress ? std::to_string(of.progress->epoch_number()) : "-",
          text::bytes(static_cast<double>(of.bytes)),
          time_text(of.written),
          count(of.ranks),
          count(of.files),
          of.layout.empty() ? "-" : layout_text(of),
          name_of(of.state)};
}

/// What is wrong with one checkpoint.
struct Verified {
  std::string folder;
  std::vector<std::string> problems{};
  bool weights_intact = true;
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::string elsewhere{};  ///< files of hosts that do not share a file system, which are not here
  double seconds = 0;
};

Verified verify_one(const std::string& folder) {
  const auto begin = std::chrono::steady_clock::now();
  Verified out{.folder = folder};
  try {
    const auto manifest = checkpoint::read_manifest(folder);
    const auto of_weights = checkpoint::needed_files(manifest, checkpoint::Use::weights);
    out.elsewhere = checkpoint::missing_parts(folder, manifest);
    for (const auto& [name, listed] : manifest.files) {
      if (checkpoint::is_elsewhere(folder, manifest, name)) continue;
      auto problem = checkpoint::file_problem((fs::path(folder) / name).string(), listed, checkpoint::Verify::content);
      ++out.files;
      out.bytes += listed.bytes;
      if (problem.empty()) continue;
      out.weights_intact = out.weights_intact && !of_weights.contains(name);
      out.problems.push_back(std::move(problem));
    }
    // All that a run needs must be listed, too.
    if (out.problems.empty()) static_cast<void>(checkpoint::Checkpoint(folder, checkpoint::Verify::sizes));
  } catch (const CheckpointError& error) {
    out.problems.emplace_back(error.what());
    out.weights_intact = false;
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

json verified_json(const Verified& row) {
  return {{"folder", row.folder},     {"intact", row.problems.empty()}, {"weights_intact", row.weights_intact},
          {"problems", row.problems}, {"elsewhere", row.elsewhere},     {"files", row.files},
          {"bytes", row.bytes},       {"seconds", row.seconds}};
}

std::string verified_line(const Verified& row) {
  const auto name = fs::path(row.folder).filename().string();
  if (row.problems.empty())
    return fmt::format("{}  intact   {}, {}, {:.1f} s{}\n", name,
                       text::quantity(static_cast<std::int64_t>(row.files), "file"),
                       text::bytes(static_cast<double>(row.bytes)), row.seconds,
                       row.elsewhere.empty() ? "" : "; not here: " + row.elsewhere);
  return fmt::format(
      "{}  damaged  {}{}\n", name, text::join(row.problems, "; "),
      row.weights_intact ? "; all that an evaluation reads is intact: it can be evaluated and exported" : "");
}

}  // namespace

std::string layout_text(const CheckpointSummary& of) {
  std::string out;
  for (const auto& [key, value] : of.layout)
    out += (out.empty() ? "" : " ") + (key == "plugin" ? value : fmt::format("{}={}", key, value));
  return out;
}

void say_skipped(const std::vector<std::string>& skipped) {
  for (const auto& line : skipped) Log().warn("{}", line);
}

json summary_json(const CheckpointSummary& of) {
  json out{{"folder", of.folder},
           {"state", name_of(of.state)},
           {"step", of.progress ? of.progress->global_step : of.step},
           {"bytes", of.bytes},
           {"written", utc_text(of.written)},
           {"ranks", of.ranks},
           {"files", of.files},
           {"problem", of.problem.empty() ? json() : json(of.problem)}};
  out["epoch"] = of.progress ? json(of.progress->epoch_number()) : json();
  out["layout"] = json::object();
  for (const auto& [key, value] : of.layout) out["layout"][key] = value;
  return out;
}

int run(const CheckpointListCommand& command) {
  auto dir = fs::path(command.run).lexically_normal();
  if (!dir.has_filename()) dir = dir.parent_path();
  if (dir.filename() == "checkpoints") dir = dir.has_parent_path() ? dir.parent_path() : ".";
  std::error_code none;
  if (!fs::is_directory(dir / "checkpoints", none))
    throw CheckpointError(fmt::format("{}: {}", command.run,
                                      !fs::exists(dir, none) ? "no such folder"
                                      : fs::exists(dir / checkpoint::kManifest, none)
                                          ? "a checkpoint; name its run's folder, or use trireme checkpoint inspect"
                                          : "not a run with checkpoints: it has no folder checkpoints/"));
  const auto found = checkpoint::list_checkpoints(dir.string());
  if (command.json) {
    auto out = json::array();
    for (const auto& each : found) out.push_back(summary_json(each));
    put(json_text(out, 2) + "\n");
    return 0;
  }
  if (found.empty()) {
    put(fmt::format("{}: no checkpoints\n", dir.string()));
    return 0;
  }
  std::vector<std::vector<std::string>> rows{
      {"checkpoint", ">step", ">epoch", ">size", "written", ">ranks", ">files", "layout", "state"}};
  for (const auto& each : found) rows.push_back(list_row(each));
  put(text_table(rows));
  for (const auto& each : found)
    if (!each.problem.empty())
      put(fmt::format("{}: {}\n", fs::path(each.folder).filename().string(), text::printable(each.problem)));
  return 0;
}

int run(const CheckpointVerifyCommand& command) {
  const auto folders = checkpoint::find_checkpoints(command.path);
  auto all = json::array();
  std::vector<std::string> problems{};
  std::size_t damaged = 0;
  for (const auto& folder : folders) {
    const auto row = verify_one(folder);
    damaged += row.problems.empty() ? 0 : 1;
    problems.insert(problems.end(), row.problems.begin(), row.problems.end());
    if (command.json)
      all.push_back(verified_json(row));
    else
      put(text::printable(verified_line(row)));
  }
  if (command.json) put(json_text(all, 2) + "\n");
  if (damaged > 0)
    throw CheckpointError(fmt::format("{} of {} damaged: {}", damaged,
                                      text::quantity(static_cast<std::int64_t>(folders.size()), "checkpoint"),
                                      text::join(problems, "; ")));
  return 0;
}

int run(const CheckpointExportCommand& command) {
  const auto [folder, skipped] =
      checkpoint::find_intact_checkpoint(command.path, checkpoint::Use::weights, checkpoint::Verify::content);
  say_skipped(skipped);
  const auto done = train::export_checkpoint(folder, command.to,
                                             {.dtype = command.dtype,
                                              .shard_mb = command.shard_mb,
                                              .names = command.names,
                                              .merge = command.merge,
                                              .overwrite = command.overwrite,
                                              .verify = checkpoint::Verify::sizes},
                                             builtin_kinds().models);
  put(fmt::format("{}: {}{} of {}, {}, as {}\n", command.to, text::quantity(done.tensors, "tensor"),
                  done.is_average ? " (the average of the weights)" : "", folder,
                  text::bytes(static_cast<double>(done.bytes)), text::first_few(done.files)));
  if (!done.problem.empty()) Log().warn("{}; after a power failure an earlier model may be there again", done.problem);
  if (!done.has_config)
    put("no config.json was written: the checkpoint has none, because a program's own model wrote it\n");
  return 0;
}

}  // namespace trireme::apps
