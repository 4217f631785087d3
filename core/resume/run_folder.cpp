#include "core/resume/run_folder.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_members.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/memory.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint_folders.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/config/table.h"
#include "core/launch/parent.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"
#include "core/resume/export.h"
#include "core/resume/restart.h"
#include "core/setup/lora.h"

namespace trireme::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMetrics = "metrics.jsonl";

std::string free_name(const std::string& dir) {
  for (int n = 1;; ++n) {
    const auto name = fmt::format("{}.{}", dir, n);
    if (!fs::exists(name)) return name;
  }
}

/// Whether an earlier run left files here. A folder with other contents is never moved. @throws ConfigError
bool holds_a_run(const fs::path& dir) {
  static const std::set<std::string> ours{"config.toml", kMetrics,       "summary.json", kTimelineFile,
                                          kTuningFile,   kExportedModel, kBestModel,     kMergedModel,
                                          "checkpoints", kLogs,          kTensorBoard,   ".lock"};
  std::error_code none;
  if (!fs::exists(dir, none)) return false;
  if (!fs::is_directory(dir, none))
    throw ConfigError(fmt::format("run.dir: {} is a file; name a folder", dir.string()));
  bool any = false;
  for (const auto& entry : fs::directory_iterator(dir, none)) {
    const auto name = entry.path().filename().string();
    if (!ours.contains(name) && !name.ends_with(".tmp"))
      throw ConfigError(
          fmt::format("run.dir: {} holds \"{}\", which is not part of a run; name another folder", dir.string(), name));
    if (name == "checkpoints" && !entry.is_directory(none))
      throw ConfigError(
          fmt::format("run.dir: {} is a file, but a run has a folder of this name; rename it, or name another run.dir",
                      entry.path().string()));
    any = any || name != ".lock";
  }
  return any;
}

struct Cut {
  std::int64_t lines = 0;  ///< that were dropped, but for scores that are written again
  RunFolder::Dropped dropped;
  RunTimes kept;
};

/// Rewrites the file for a run that goes on at `step`. Dropped are the lines of later steps, but for starts, and a
/// truncated one. The test scores of an earlier end are removed too, but the resumed run's end writes them again; so
/// are the scores of this step if the checkpoint does not know them. @throws CheckpointError
Cut cut_metrics(const std::string& path, std::int64_t step, bool is_evaluated) {
  Cut cut;
  std::error_code none;
  if (!fs::exists(path, none)) return cut;
  std::ifstream lines(path, std::ios::binary);
  if (!lines) throw CheckpointError(path + ": cannot be read");
  FileWriter out(path);
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = parse_json_or_null(line);
    if (!parsed.is_object()) {
      ++cut.lines;
      continue;
    }
    const double at = number_in(parsed, "step").value_or(0);
    const bool later = at > static_cast<double>(step) && !is_in(parsed, "event", kStartEvent);
    const bool again = is_in(parsed, "split", "test") ||
                       (!is_evaluated && is_in(parsed, "kind", "eval") && at == static_cast<double>(step));
    cut.dropped.end = std::max(cut.dropped.end, number_in(parsed, "time").value_or(0));
    cut.lines += later ? 1 : 0;
    if (later || again) {
      cut.dropped.seconds += lost_with(parsed);
      continue;
    }
    cut.kept.add(parsed);
    line += '\n';
    out.write(line.data(), line.size());
  }
  if (lines.bad()) throw CheckpointError(path + ": cannot be read to its end");
  out.commit();
  return cut;
}

}  // namespace

bool is_checkpoint_of(const std::string& dir, const std::string& checkpoint) {
  std::error_code none;
  const auto path = fs::canonical(checkpoint, none);
  return !none && fs::equivalent(path.parent_path(), fs::path(dir) / "checkpoints", none);
}

RunFolder::RunFolder(const std::string& dir, std::string config_toml, const FindPoint& find_point, bool active)
    : dir_(fs::path(dir).lexically_normal().string()), config_toml_(std::move(config_toml)), active_(active) {
  if (!active_) return;
  while (dir_.size() > 1 && dir_.back() == '/') dir_.pop_back();
  (void)holds_a_run(dir_);  // other contents are refused before anything is written
  const bool is_new = !fs::exists(dir_);
  if (is_new) resume_point_ = find_point(damages_);  // an error then leaves no folder
  lock();
  const bool earlier = holds_a_run(dir_);
  checkpoint::restore_replaced(dir_);
  if (!is_new) resume_point_ = find_point(damages_);
  if (!resume_point_.done.empty()) return;
  if (!resume_point_.from.empty() && is_checkpoint_of(dir_, resume_point_.from)) {
    // Of a crash. The next save removes parts of checkpoints too, but there may be none.
    remove_temporary_files(dir_);
    for (const char* name : {kExportedModel, kBestModel, kMergedModel})
      checkpoint::recover_model_folder(path_in(dir_, name));
    checkpoint::remove_leftovers(dir_);
    return;
  }
  if (earlier && is_ours_without_checkpoint()) {
    clear_own_start();
  } else if (earlier) {
    move_earlier_run();
    lock();
  }
  begin();
}

void RunFolder::look_further(const RunSetup& setup, const checkpoint::Damage& damage) {
  damages_[resume_point_.from] = damage;
  resume_point_ = find_resume_point(setup, config_toml_, checkpoint::Verify::record, damages_, setup.log);
  if (!moved_.empty()) resume_point_.notes.push_back(moved_);
}

/// Whether the run that is there was begun by an earlier start of this command, and nothing of it can be gone on from.
bool RunFolder::is_ours_without_checkpoint() const {
  if (!was_trained_here(dir_) || fs::exists(fs::path(dir_) / "summary.json") || fs::exists(fs::path(dir_) / kBestModel))
    return false;
  const auto checkpoints = checkpoint::all_checkpoints(dir_);
  return std::all_of(checkpoints.begin(), checkpoints.end(),
                     [](const auto& folder) { return folder.ends_with(checkpoint::kTemporary); });
}

void RunFolder::clear_own_start() {
  std::vector<std::string> unsaid;
  cut(-1, /*is_evaluated=*/false, unsaid);  // of metrics.jsonl the starts stay
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir_, ignored)) found.push_back(entry.path());
  for (const auto& path : found)
    if (path.filename() != ".lock" && path.filename() != kMetrics) fs::remove_all(path, ignored);  // the lock is held
  resume_point_.notes.emplace_back("earlier   start saved no checkpoint; its folder is used again");
}

void RunFolder::lock() {
  // The ranks of the start before may still be ending.
  constexpr std::chrono::seconds kToEnd{20};
  const auto now = std::chrono::steady_clock::now;
  const auto deadline = now() + (restart_of_this_process() ? kToEnd : std::chrono::seconds(0));
  lock_.reset();
  while (!lock_) {
    try {
      lock_.emplace(dir_);
    } catch (const ConfigError& error) {
      if (now() >= deadline) throw ConfigError(fmt::format("run.dir: {}", error.what()));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

void RunFolder::move_earlier_run() {
  const auto moved_to = free_name(dir_);
  std::error_code error;
  fs::rename(dir_, moved_to, error);
  if (error)
    throw CheckpointError(
        fmt::format("{}: the earlier run there cannot be moved to {}: {}", dir_, moved_to, error.message()));
  using Earlier = ResumePoint::Earlier;
  const auto why = [&]() -> std::string {
    if (resume_point_.earlier == Earlier::without_checkpoint) return " (it has no checkpoint to go on from)";
    if (resume_point_.earlier != Earlier::finished) return "";
    return fmt::format(" (it is finished; to train it further: --resume {})", moved_to);
  };
  moved_ = fmt::format("earlier   run moved to {}{}", moved_to, why());
  resume_point_.notes.push_back(moved_);
}

void RunFolder::begin() {
  parent::trains_in(fs::absolute(dir_).string());
  write_file(path_in(dir_, "config.toml"), config_toml_);
  metrics_.emplace(path_in(dir_, kMetrics));
}

void RunFolder::go_on(std::int64_t step, bool is_evaluated) {
  if (!active_ || metrics_) return;
  cut(step, is_evaluated, resume_point_.notes);
  begin();
}

std::vector<std::string> RunFolder::go_back(std::int64_t step, bool is_evaluated) {
  std::vector<std::string> notes;
  if (!active_) return notes;
  cut(step, is_evaluated, notes);
  metrics_.emplace(path_in(dir_, kMetrics));  // the file may be a new one
  return notes;
}

void RunFolder::cut(std::int64_t step, bool is_evaluated, std::vector<std::string>& notes) {
  std::error_code none;
  fs::remove(fs::path(dir_) / "summary.json", none);  // of an earlier end, which is no longer the run's
  if (const auto aside = checkpoint::set_aside_after(dir_, step); !aside.empty())
    notes.push_back(fmt::format("aside     checkpoints of later steps renamed: {}", text::join(aside)));
  dropped_ = {};
  try {
    const auto cut = cut_metrics(path_in(dir_, kMetrics), step, is_evaluated);
    times_ = cut.kept;
    dropped_ = cut.dropped;
    if (cut.lines > 0)
      notes.push_back(
          fmt::format("metrics   {} {} after step {} dropped", cut.lines, cut.lines == 1 ? "line" : "lines", step));
  } catch (const CheckpointError& error) {
    if (!bears_errors_) throw;
    bears_errors_->warn("{}; lines after step {} stay in it", error.what(), step);
  }
}

void RunFolder::metric(nlohmann::json line) {
  if (!active_) return;
  line["time"] = unix_seconds();
  times_.add(line);
  record(kMetrics, [&] { metrics_->add(json_text(line) + "\n"); });
}

void RunFolder::record(const char* file, const std::function<void()>& add) {
  if (!active_ || !problem_.empty()) return;
  try {
    add();
  } catch (const CheckpointError& error) {
    if (!bears_errors_)
      problem_ = error.what();
    else if (warned_.insert(file).second)
      bears_errors_->warn("{}; what cannot be written is left out", error.what());
  }
}

void RunFolder::summary(const nlohmann::json& content) {
  if (!active_) return;
  if (!problem_.empty()) throw CheckpointError(problem_);
  write_file(path_in(dir_, "summary.json"), json_text(content, 2) + "\n");
}

/// A new run would rename the folder with these weights before they are read. @throws ConfigError
static void check_weights_stay(const RunSetup& setup) {
  for (const auto& [section, weights] : {std::pair{"model", &setup.weights.path}, {"lora", &setup.weights.adapters}})
    if (!weights->empty() && lies_in(*weights, setup.config.run.dir))
      config::fail(setup.config.root.table(section), "weights",
                   fmt::format("{} is inside run.dir ({}), which a new run renames; set another run.dir", *weights,
                               setup.config.run.dir));
}

/// Whether the weights that the run will write have a place, as far as that is known before its first step: those of
/// RUN/model and RUN/model-best, and of one checkpoint. In the folder of an earlier run, whose files they replace, one
/// file beside them. What this machine's memory cannot hold is another error's. @throws CheckpointError
static void check_space(const RunSetup& setup) {
  const auto& run = setup.config.run;
  if (setup.model.kind == nullptr || setup.config.lora)
    return;  // a program's model may have its memory; adapters are small
  const auto parameters = static_cast<double>(nn::parameter_count(*setup.model.source().model));
  const double file = parameters * sizeof(float);
  const double exported =
      parameters * static_cast<double>(c10::elementSize(export_format(run).dtype.value_or(at::kFloat)));
  const auto memory = memory::available_on_host();
  if (memory && file > static_cast<double>(*memory)) return;
  std::error_code error;
  auto there = fs::absolute(run.dir, error);
  const auto needed = fs::exists(there / kMetrics, error)
                          ? exported
                          : exported + (setup.plan.keeps_best ? file : 0) + (run.keep_checkpoints > 0 ? file : 0);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const auto space = fs::space(there, error);
  const bool unknown = error || space.capacity == 0;  // some file systems of object stores say nothing
  if (unknown || static_cast<double>(space.available) >= needed) return;
  throw CheckpointError(fmt::format(
      "run.dir: {} has {} left, but the {} parameters that the run writes need at least {}; free some space, or "
      "name a folder on another disk",
      there.string(), text::bytes(static_cast<double>(space.available)),
      text::thousands(static_cast<std::int64_t>(parameters)), text::bytes(needed)));
}

/// The configuration as stored in the folder: it works from any working directory.
static RunConfig from_anywhere(const RunSetup& setup) {
  auto config = setup.config;
  config.model.weights = setup.weights.path;
  config::make_paths_absolute(run_fields(), &config.run);
  config.run.resume = kResumeAuto;  // so that the file goes on with its run
  config::make_paths_absolute(model_fields(), &config.model);
  if (config.lora) config::make_paths_absolute(lora_fields(), &*config.lora);
  const auto own = [](auto& factory) { config::make_paths_absolute(factory.fields(), factory.options()); };
  own(config.data.source);
  for (auto& part : config.data.mix) own(part.source);
  own(config.optimizer.method);
  own(config.schedule.curve);
  config::make_paths_absolute(parallel_fields(), &config.parallel);
  return config;
}

std::string config_toml_of(const RunSetup& setup) {
  const auto& model = setup.model;
  const auto model_rows = model.kind ? config::print_rows(model.kind->fields(), model.options.get()) : "";
  return resolved_toml(from_anywhere(setup), &setup.task.kind, *setup.plugin, model_rows);
}

void check_run(const RunSetup& setup) {
  check_weights_stay(setup);
  check_space(setup);
  config::with_location(setup.config.root, [&] { (void)holds_a_run(setup.config.run.dir); });
  checkpoint::Damages known;
  const Log silent(/*rank=*/1);  // the run itself will warn
  (void)find_resume_point(setup, config_toml_of(setup), checkpoint::Verify::sizes, known, silent);
}

std::unique_ptr<RunFolder> open_run(const RunSetup& setup) {
  check_weights_stay(setup);
  const auto toml = config_toml_of(setup);
  const bool first = setup.launch.rank == 0;
  if (first) check_space(setup);
  std::unique_ptr<RunFolder> folder;
  const auto find_point = [&](checkpoint::Damages& known) {
    return find_resume_point(setup, toml, checkpoint::Verify::record, known, setup.log);
  };
  config::with_location(setup.config.root,
                        [&] { folder = std::make_unique<RunFolder>(setup.config.run.dir, toml, find_point, first); });
  return folder;
}

}  // namespace trireme::train
