#include "apps/runs/run_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/json_members.h"
#include "core/base/json_parse.h"
#include "core/base/terminal_text.h"

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kMetrics = "metrics.jsonl";

/// Whether another process has the folder's lock (core/base/files/output_folder.h).
bool is_locked(const std::string& dir) {
  const FileDescriptor lock(::open((dir + "/.lock").c_str(), O_RDONLY | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

template <class T>
T value(const json& line, const char* key, T otherwise) {
  try {
    return line.value(key, otherwise);
  } catch (const json::exception&) {  // of another type
    return otherwise;
  }
}

/// What a start says about the run.
void take_start(RunRecord& run, const json& line) {
  run.steps = value<std::int64_t>(line, "steps", 0);
  run.layout = for_terminal(text_in(line, "layout"));
  run.plugin = for_terminal(text_in(line, "plugin"));
  const auto metric = line.find("best_by");
  if (metric == line.end()) return;
  run.best_by = for_terminal(text_in(*metric, "name"));
  run.is_fraction = value(*metric, "fraction", false);
}

}  // namespace

const char* name_of(RunState state) {
  switch (state) {
    case RunState::running:
      return "running";
    case RunState::finished:
      return "finished";
    case RunState::stopped:
      return "stopped";
    case RunState::died:
      return "died";
  }
  return "";
}

std::string best_text(const RunRecord& run) {
  if (!run.best) return "-";
  return run.is_fraction ? fmt::format("{} {:.1f} %", run.best_by, 100 * *run.best)
                         : fmt::format("{} {:.4g}", run.best_by, *run.best);
}

bool is_run(const std::string& dir) {
  std::error_code none;
  return fs::is_regular_file(fs::path(dir) / kMetrics, none) &&
         fs::is_regular_file(fs::path(dir) / "config.toml", none);
}

RunReader::RunReader(std::string dir, EachLine each) : each_(std::move(each)) { run_.dir = std::move(dir); }

void RunReader::take(const json& line) {
  run_.times.add(line);
  const auto event = text_in(line, "event");
  if (event == train::kStartEvent) take_start(run_, line);
  if (!event.empty()) last_event_ = event;
  if (is_in(line, "kind", "step")) run_.step = value<std::int64_t>(line, "step", run_.step);
  if (value(line, "best", false))
    if (const auto best = number_in(line, run_.best_by.c_str())) run_.best = best;
  if (each_) each_(line);
}

const RunRecord& RunReader::read() {
  const auto path = run_.dir + "/" + kMetrics;
  struct stat file {};
  const bool found = ::stat(path.c_str(), &file) == 0;  // before it is opened: what replaces it is seen the next time
  std::ifstream lines(path, std::ios::binary);
  if (!found || !lines) throw CheckpointError(path + ": cannot be read");
  if (begins_ == 0 || file.st_ino != file_ || file.st_size < position_) {
    run_ = RunRecord{.dir = run_.dir};
    position_ = 0;
    last_event_.clear();
    file_ = file.st_ino;
    ++begins_;
  }
  lines.seekg(position_);
  for (std::string text; std::getline(lines, text) && !lines.eof();) {  // the last line may not be complete yet
    position_ += static_cast<std::int64_t>(text.size()) + 1;
    if (const auto line = parse_json_or_null(text); line.is_object()) take(line);
  }
  std::ifstream result(run_.dir + "/summary.json", std::ios::binary);
  const auto summary = parse_json_or_null(std::string{std::istreambuf_iterator<char>(result), {}});
  if (is_locked(run_.dir))
    run_.state = RunState::running;
  else if (summary.is_object())
    run_.state = value(summary, "finished", false) ? RunState::finished : RunState::stopped;
  else
    run_.state = last_event_ == "stop" ? RunState::stopped : RunState::died;
  return run_;
}

RunRecord read_run(const std::string& dir, const EachLine& each) { return RunReader(dir, each).read(); }

std::vector<std::string> runs_in(const std::string& dir) {
  constexpr int kDeepest = 8;
  if (is_run(dir)) return {dir};
  std::vector<std::string> out;
  std::error_code none;
  const auto options = fs::directory_options::skip_permission_denied;
  for (auto at = fs::recursive_directory_iterator(dir, options, none); !none && at != fs::end(at); at.increment(none)) {
    std::error_code ignored;
    if (!at->is_directory(ignored)) continue;
    const bool found = is_run(at->path().string());
    if (found) out.push_back(at->path().string());
    if (found || at.depth() >= kDeepest) at.disable_recursion_pending();
  }
  if (none) throw CheckpointError(fmt::format("{}: cannot be listed: {}", dir, none.message()));
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> find_runs(const std::string& dir) {
  std::error_code none;
  if (!fs::is_directory(dir, none)) throw ConfigError(dir + ": no such folder; name one with runs in it, or a run");
  auto out = runs_in(dir);
  if (out.empty())
    throw ConfigError(dir + ": neither a run nor a folder with runs; each has a config.toml and a metrics.jsonl");
  return out;
}

}  // namespace trireme::apps
