#include "core/program/spawned_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/comm/flight/record.h"
#include "core/launch/parent.h"
#include "core/launch/rank_variables.h"

namespace trireme {
namespace {

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

}  // namespace

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

}  // namespace trireme
