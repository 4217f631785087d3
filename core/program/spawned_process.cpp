#include "core/program/spawned_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <utility>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/comm/flight/record.h"
#include "core/launch/parent.h"
#include "core/launch/rank_report.h"
#include "core/launch/rank_variables.h"

namespace trireme::detail {
namespace {

/// Names the call of spawn() at which a rank's process runs the function: "FILE:LINE:COLUMN#NUMBER".
constexpr const char* kSpawnCall = "TRIREME_SPAWN";
/// "RANK RANKS PORT STORE": the rank's place, and the descriptor of rank 0's store. Its variables are set only at the
/// call, so that main() sees until then what it saw in the caller.
constexpr const char* kSpawnRank = "TRIREME_SPAWN_RANK";

/// A copy of the descriptor that programs which main() starts do not inherit.
int keep(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 10); }

void flush_streams() {
  std::cout.flush();
  std::fflush(nullptr);
}

/// This process, if spawn() has started it.
class SpawnedProcess {
 public:
  explicit SpawnedProcess(SpawnCall call)
      : call_(std::move(call)), output_(keep(STDOUT_FILENO)), error_(keep(STDERR_FILENO)) {
    if (call_.rank == 0) fcntl(call_.store, F_SETFD, FD_CLOEXEC);
    const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nothing, STDOUT_FILENO);
    dup2(nothing, STDERR_FILENO);
    close(nothing);
  }

  /// See run_as_rank().
  void run(const std::string& place, const std::function<std::string()>& body) {
    TRIREME_REQUIRE(!reached_, "spawn() is called by a function that spawn() runs; call it from main()");
    if (place != call_.place) return;
    reach();
    std::string text;
    try {
      text = body();
    } catch (...) {
      const auto verdict = verdict_on(std::current_exception());
      flush_streams();
      parent::failed({.code = verdict.exit_code, .message = verdict.message});
      _exit(verdict.exit_code);  // not exit(): other threads may still run, and destructors of static objects with them
    }
    flush_streams();
    parent::done(text);
    _exit(0);
  }

 private:
  /// Restores standard output and error, and sets the rank's variables.
  void reach() {
    reached_ = true;
    flush_streams();  // what main() has printed goes to /dev/null
    dup2(output_, STDOUT_FILENO);
    dup2(error_, STDERR_FILENO);
    close(output_);
    close(error_);
    for (const auto& [name, value] : rank_variables(call_.rank, call_.ranks, call_.port, "spawn", call_.store))
      setenv(name.c_str(), value.c_str(), 1);
    parent::reached();
  }

  SpawnCall call_;
  int output_ = -1, error_ = -1;  ///< the real streams
  bool reached_ = false;          ///< the call is reached: the function runs
};

/// What this process was at its start, before main() could change it.
ranks::Program record_start() {
  ranks::Program start{.path = "/proc/self/exe", .environment = whole_environment()};
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(file, argument, '\0');) start.words.push_back(argument);
  char folder[PATH_MAX] = {};
  if (getcwd(folder, sizeof folder) != nullptr) start.folder = folder;
  return start;
}

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
const ranks::Program the_start = record_start();
std::optional<SpawnedProcess> spawned_process = find_self();

}  // namespace

ranks::Program program_of_rank(const SpawnCall& call, bool on_cpu) {
  auto program = the_start;
  auto& environment = program.environment;
  set_thread_variables(environment, call.ranks, on_cpu);
  set_variable(environment, comm::flight::kFolderVariable, call.flight_folder);
  set_variable(environment, kSpawnCall, call.place);
  set_variable(environment, kSpawnRank, fmt::format("{} {} {} {}", call.rank, call.ranks, call.port, call.store));
  return program;
}

bool run_as_rank(const std::string& place, const std::function<std::string()>& body) {
  if (spawned_process) spawned_process->run(place, body);
  return spawned_process.has_value();
}

}  // namespace trireme::detail
