#include "core/program/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/environment.h"
#include "core/base/verdict.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/record.h"
#include "core/launch/cause.h"
#include "core/launch/local_ranks.h"
#include "core/launch/parent.h"
#include "core/launch/process.h"
#include "core/launch/rank_report.h"
#include "core/launch/rank_variables.h"

namespace trireme {
namespace {

/// Names the call of spawn() at which a rank's process runs the function: "FILE:LINE:COLUMN#NUMBER".
constexpr const char* kSpawnCall = "TRIREME_SPAWN";
/// "RANK RANKS PORT STORE": the rank's place, and the descriptor of rank 0's store. Its variables are set only at the
/// call, so that main() sees until then what it saw in the caller.
constexpr const char* kSpawnRank = "TRIREME_SPAWN_RANK";

/// The call of spawn(), and a rank's place in it.
struct SpawnCall {
  std::string place;
  int rank, ranks, port, store;
  std::string flight_folder{};  ///< of the ranks' flight records; "" if there is none
};

/// This process, if spawn() has started it.
class SpawnedProcess {
 public:
  /// Null in other processes.
  static SpawnedProcess* get();
  [[nodiscard]] const std::string& call() const { return call_.place; }
  /// Whether the call is reached: the function runs.
  [[nodiscard]] bool reached() const { return reached_; }
  /// Restores standard output and error, and sets the rank's variables.
  void reach();
  // Report to the caller and end this process.
  [[noreturn]] void end(const std::string& result);
  [[noreturn]] void fail(const ranks::Failure& failure);

  explicit SpawnedProcess(SpawnCall call);

 private:
  SpawnCall call_;
  int output_ = -1, error_ = -1;  ///< the real streams
  bool reached_ = false;
};

/// What this process was at its start, before main() could change it.
struct ProgramStart {
  std::vector<std::string> arguments, environment;
  std::string folder;
};

ProgramStart record_start() {
  ProgramStart start;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(file, argument, '\0');) start.arguments.push_back(argument);
  start.environment = whole_environment();
  char folder[PATH_MAX] = {};
  if (getcwd(folder, sizeof folder) != nullptr) start.folder = folder;
  return start;
}

/// A copy of the descriptor that programs which main() starts do not inherit.
int keep(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 10); }

/// Runs when libtrireme is loaded, so before the program's own code can print anything.
std::optional<SpawnedProcess> find_self() {
  const char* place = std::getenv(kSpawnCall);
  const char* text = std::getenv(kSpawnRank);
  SpawnCall call;
  if (place == nullptr || text == nullptr ||
      std::sscanf(text, "%d %d %d %d", &call.rank, &call.ranks, &call.port, &call.store) != 4)
    return std::nullopt;
  if (!parent::listens()) {  // as a caller it would start ranks, each of which would do so too
    std::fputs("trireme: spawn: a wrapper around the program has closed the descriptor of its rank's report\n", stderr);
    _exit(static_cast<int>(ExitCode::config));
  }
  call.place = place;
  std::optional<SpawnedProcess> self(std::in_place, call);
  // Programs that main() starts are no ranks.
  for (const char* name : {kSpawnCall, kSpawnRank, ranks::kReportVariable}) unsetenv(name);
  return self;
}

// The start is recorded first, with the variables that find_self() removes: the caller replaces them.
const ProgramStart the_start = record_start();
std::optional<SpawnedProcess> spawned_process = find_self();

/// This program, as it was started, as the rank of a call.
ranks::Program program_of_rank(const SpawnCall& call, bool on_cpu) {
  ranks::Program program{"/proc/self/exe", the_start.arguments, the_start.environment, the_start.folder};
  auto& environment = program.environment;
  for (const auto& [name, value] : thread_variables(call.ranks, on_cpu, environment))
    set_variable(environment, name, value);
  set_variable(environment, comm::flight::kFolderVariable, call.flight_folder);
  set_variable(environment, kSpawnCall, call.place);
  set_variable(environment, kSpawnRank, fmt::format("{} {} {} {}", call.rank, call.ranks, call.port, call.store));
  return program;
}

SpawnedProcess* SpawnedProcess::get() { return spawned_process ? &*spawned_process : nullptr; }

SpawnedProcess::SpawnedProcess(SpawnCall call)
    : call_(std::move(call)), output_(keep(STDOUT_FILENO)), error_(keep(STDERR_FILENO)) {
  if (call_.rank == 0) fcntl(call_.store, F_SETFD, FD_CLOEXEC);
  const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nothing, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  close(nothing);
}

void SpawnedProcess::reach() {
  reached_ = true;
  std::cout.flush();
  std::fflush(nullptr);  // what main() has printed goes to /dev/null
  dup2(output_, STDOUT_FILENO);
  dup2(error_, STDERR_FILENO);
  close(output_);
  close(error_);
  for (const auto& [name, value] : rank_variables(call_.rank, call_.ranks, call_.port, "spawn", call_.store))
    setenv(name.c_str(), value.c_str(), 1);
  parent::reached();
}

// Not exit(): other threads of the program may still run, and destructors of static objects with them.

void SpawnedProcess::end(const std::string& result) {
  std::cout.flush();
  std::fflush(nullptr);
  parent::done(result);
  _exit(0);
}

void SpawnedProcess::fail(const ranks::Failure& failure) {
  std::cout.flush();
  std::fflush(nullptr);
  parent::failed(failure);
  _exit(failure.code);
}

constexpr int kMostRanks = 4096;
constexpr std::chrono::seconds kPatience{3};

/// "FILE:LINE:COLUMN#NUMBER": the number counts the calls at this place of the source.
std::string next_call(const std::source_location& where) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::scoped_lock lock(mutex);
  const auto place = fmt::format("{}:{}:{}", where.file_name(), where.line(), where.column());
  return fmt::format("{}#{}", place, ++calls[place]);
}

/// What is said about a rank that has failed.
std::string text_of(const ranks::RankState& state, int ranks, const std::string& place) {
  const auto name = fmt::format("rank {}", state.rank);
  const auto& failure = state.report.failure;
  if (failure && state.report.reached) return fmt::format("{}: {}", name, failure->message);
  const auto end = failure ? fmt::format("{}: {},", name, failure->message)
                   : state.signal() != 0
                       ? ranks::ended_by_signal(name, state.signal(), ranks::Ranks::of_any_program, ranks)
                       : fmt::format("{} ended with exit code {}", name, state.code());
  if (!state.report.reached)
    return fmt::format(
        "{} before it came to the call of spawn() at {}: a rank runs the program again from main() on, which must come "
        "to the same call",
        end, place.substr(0, place.rfind('#')));
  return state.signal() != 0 ? end : end + " before the function of spawn() returned";
}

/// The ranks of one call.
class Spawned {
 public:
  Spawned(const std::string& place, int ranks, bool on_cpu) : place_(place), ranks_(ranks) {
    const StoreSocket store;
    const auto inherited = ranks::inheritable_copy(store.descriptor());
    std::vector<ranks::Program> programs;
    for (int rank = 0; rank < ranks; ++rank)
      programs.push_back(program_of_rank({place, rank, ranks, store.port(), inherited.get(), records_.path()}, on_cpu));
    ranks::RankSettings settings{.store_socket = inherited.get(), .of_spawn = true};
    sigemptyset(&settings.blocked);
    processes_.emplace(loop_, std::move(programs), settings);
  }

  /// Waits until all ranks have ended, or one has failed. Returns the failure.
  std::optional<ranks::Cause> wait() {
    std::optional<Clock::time_point> failing_since;
    while (processes_->busy()) {
      wait_for_news();
      if (!cause()) continue;
      processes_->collect();  // what explains it has happened before
      if (!failing_since) failing_since = Clock::now();
      const bool waits =
          cause()->end == ranks::End::lost_peer && !std::all_of(states().begin(), states().end(), ranks::is_settled);
      if (!waits || Clock::now() - *failing_since > ranks::kSettleTime) break;
    }
    return cause();
  }

  void stop() {
    processes_->end(SIGTERM, kPatience);
    while (processes_->busy()) {
      wait_for_news();
      processes_->check_deadline();
    }
  }

  [[nodiscard]] std::string text_of(const ranks::Cause& cause) const {
    return trireme::text_of(states()[static_cast<std::size_t>(cause.rank)], ranks_, place_);
  }
  [[nodiscard]] const std::vector<ranks::RankState>& states() const { return processes_->states(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// Not for long: an end alone wakes nobody if another process has the pipe.
  void wait_for_news() {
    loop_.run_once(std::any_of(states().begin(), states().end(), ends) ? 1 : 100);
    processes_->collect();
  }
  /// Whether the rank has reported its end, but still runs.
  static bool ends(const ranks::RankState& state) {
    return !state.ended() && (state.report.result || state.report.failure);
  }
  /// Of a rank that the program has waited for itself only the report is known.
  [[nodiscard]] std::optional<ranks::Cause> cause() const {
    if (auto found = ranks::cause_of(states())) return found;
    for (const auto& state : states())
      if (state.ended() && !state.report.result)
        return ranks::Cause{state.rank, ranks::End::exited,
                            state.report.reached ? 1 : static_cast<int>(ExitCode::config)};
    return std::nullopt;
  }

  std::string place_;
  int ranks_;
  comm::flight::ParentFolder records_;  // of what the ranks do: nothing is left of it
  ranks::EventLoop loop_;
  std::optional<ranks::LocalRanks> processes_;
};

/// In a process that spawn() has started. Returns if `place` is an earlier call than the process's own.
void run_as_rank(SpawnedProcess& self, const std::string& place, const std::function<std::string()>& body) {
  TRIREME_REQUIRE(!self.reached(), "spawn() is called by a function that spawn() runs; call it from main()");
  if (place != self.call()) return;
  self.reach();
  std::string text;
  try {
    text = body();
  } catch (...) {
    const auto verdict = verdict_on(std::current_exception());
    self.fail({.code = verdict.exit_code, .message = verdict.message});
  }
  self.end(text);
}

}  // namespace

namespace detail {

std::vector<std::string> spawn_ranks(int ranks, const std::function<std::string()>& body, bool on_cpu,
                                     const std::source_location& where) {
  TRIREME_REQUIRE(ranks >= 1 && ranks <= kMostRanks, "spawn({}): the number of ranks must be from 1 to {}", ranks,
                  kMostRanks);
  const auto place = next_call(where);
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  if (auto* self = SpawnedProcess::get()) {
    run_as_rank(*self, place, body);
    return texts;
  }
  if (const auto launched = detect_launch(); launched.size > 1)
    throw UsageError(
        fmt::format("spawn() is called in a rank of a launcher ({}), and each rank would start {} more; "
                    "start the program without a launcher, or do not call spawn() in it",
                    launched.text(), ranks));
  Spawned processes(place, ranks, on_cpu);
  if (const auto cause = processes.wait()) {
    const auto message = processes.text_of(*cause);
    processes.stop();
    throw RankError(cause->rank, static_cast<ExitCode>(cause->code), message, where);
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    texts[rank] = processes.states()[rank].report.result.value_or("");
  return texts;
}

bool only_cpu(const SpawnOptions& options) { return options.world.device == "cpu" || !host_has_gpu(); }

std::unique_ptr<comm::World> start_spawned_world(const SpawnOptions& options) {
  return comm::World::start(detect_launch(), options.world);
}

}  // namespace detail
}  // namespace trireme
