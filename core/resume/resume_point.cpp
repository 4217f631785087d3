#include "core/resume/resume_point.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/text.h"
#include "core/resume/restart.h"
#include "core/resume/run_folder.h"
#include "core/resume/same_training.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::Verify;

/// The summary in a run's folder; null when it has none.
nlohmann::json summary_in(const std::string& run_dir) {
  std::error_code none;
  const auto path = path_in(run_dir, "summary.json");
  if (!fs::exists(path, none)) return nullptr;
  auto summary = parse_json_or_null(read_file(path));
  return summary.is_object() ? summary : nullptr;
}

/// The step at which the results in a run's folder were written; -1: there are none.
std::int64_t summarised_step(const nlohmann::json& summary) {
  return summary.is_object() ? summary.value("steps", std::int64_t{-1}) : -1;
}

/// A message that the run is complete and its results are in the folder; "" when anything is missing.
std::string nothing_left(const RunSetup& setup, const checkpoint::Checkpoint& stored) {
  const auto& at = stored.record().progress;
  const auto& dir = setup.config.run.dir;
  if (!is_checkpoint_of(dir, stored.folder()) ||
      !(at.global_step >= setup.batch.steps || at.epoch >= setup.config.train.epochs))
    return "";
  if (summarised_step(summary_in(dir)) != at.global_step) return "";
  return fmt::format("resume    from {}: nothing is left to do, {}; raise train.epochs (or max_steps) to train further",
                     stored.folder(),
                     at.global_step == 1 ? "its one step is done"
                                         : fmt::format("all {} steps are done", text::thousands(at.global_step)));
}

bool is_run_folder(const std::string& path) {
  std::error_code none;
  const auto is_there = [&](const char* name) { return fs::exists(fs::path(path) / name, none); };
  return is_there("checkpoints") || (is_there("config.toml") && !is_there("manifest.json"));
}

/// The checkpoint that a name in run.resume leads to. @throws CheckpointError when there is none
std::string named_checkpoint(const std::string& name, const Log& log, Verify how, checkpoint::Damages& known) {
  try {
    const auto damage = known.find(name);
    if (damage != known.end() && !damage->second.only_best) throw CheckpointError(damage->second.why);
    if (!is_run_folder(name)) return checkpoint::Checkpoint(name, how).folder();
    if (auto newest = checkpoint::latest_checkpoint(name, log, how, known); !newest.empty()) return newest;
    throw CheckpointError(fmt::format("{}: this run has no complete checkpoint", name));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format(
        "run.resume: {}; name another checkpoint or run's folder, or give auto (go on with the run in run.dir if there "
        "is one), must (go on with it) or never (a new run)",
        error.what()));
  }
}

/// Whether this is a restart of a training that has left something to go on from, whatever run.resume says.
bool goes_on_after_restart(const std::string& dir) {
  return was_trained_here(dir) && (is_finished(dir) || !checkpoint::complete_checkpoints(dir).empty());
}

/// Decides for the run in run.dir. @throws CheckpointError
ResumePoint own_point(const RunSetup& setup, bool must, Verify how, checkpoint::Damages& known, const Log& log) {
  const auto& dir = setup.config.run.dir;
  ResumePoint point;
  if (!must && is_finished(dir)) {
    point.earlier = ResumePoint::Earlier::finished;
    if (was_trained_here(dir)) point.done = fmt::format("restart   nothing is left to do: {} is finished", dir);
    return point;
  }
  point.from = checkpoint::latest_checkpoint(dir, log, how, known);
  if (!point.from.empty()) return point;
  if (must)
    throw CheckpointError(fmt::format(
        "run.resume = \"must\": {} has no checkpoint to go on from; check run.dir, or start a new run with --resume "
        "auto",
        dir));
  point.earlier = ResumePoint::Earlier::without_checkpoint;
  return point;
}

}  // namespace

ResumePoint find_resume_point(const RunSetup& setup, const std::string& config_toml, Verify how,
                              checkpoint::Damages& known, const Log& log) {
  const auto& resume = setup.config.run.resume;
  const bool again = goes_on_after_restart(setup.config.run.dir);
  if (resume == kResumeNever && !again) return {};
  const bool own = again || resume == kResumeAuto || resume == kResumeMust;
  auto point = own ? own_point(setup, !again && resume == kResumeMust, how, known, log)
                   : ResumePoint{.from = named_checkpoint(resume, log, how, known)};
  if (point.from.empty()) return point;
  const checkpoint::Checkpoint stored(point.from, Verify::sizes);  // its record is verified
  if (const auto changed = check_same_training(setup, config_toml, stored); !changed.empty())
    point.notes.push_back(fmt::format("changed   {}", text::join(changed)));
  const auto step = stored.record().progress.global_step;
  if (step > setup.batch.steps)
    point.notes.push_back(
        fmt::format("beyond    step {} is after the last of this configuration, {}; what was trained stays",
                    text::thousands(step), text::thousands(setup.batch.steps)));
  point.done = nothing_left(setup, stored);
  return point;
}

bool ends_training(const std::string& stopped_by) {
  return stopped_by.empty() || stopped_by == "train.max_steps" || stopped_by == "train.patience";
}

bool is_finished(const std::string& run_dir) {
  const auto summary = summary_in(run_dir);
  if (!summary.is_object()) return false;
  // Older versions did not record it.
  if (!summary.value("finished", ends_training(summary.value("stopped_by", "")))) return false;
  // A run that was trained further has later checkpoints than results.
  const auto checkpoints = checkpoint::complete_checkpoints(run_dir);
  return checkpoints.empty() || checkpoint::step_of_folder(checkpoints.front()) <= summarised_step(summary);
}

}  // namespace trireme::train
