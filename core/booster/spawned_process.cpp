#include "core/booster/spawned_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "core/base/environment.h"
#include "core/launch/rank_variables.h"

namespace trireme {
namespace {

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
  const char* call = std::getenv(kSpawnCall);
  const char* text = std::getenv(kSpawnRank);
  int caller = 0, rank = 0, size = 0, port = 0;
  if (call == nullptr || text == nullptr || std::sscanf(text, "%d %d %d %d", &caller, &rank, &size, &port) != 4)
    return std::nullopt;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != caller) _exit(1);  // it has ended before prctl()
  std::optional<SpawnedProcess> self(std::in_place, call, rank, size, port);
  // Programs that main() starts are no ranks.
  unsetenv(kSpawnCall);
  unsetenv(kSpawnRank);
  return self;
}

// The start is recorded first, with the variables that find_self() removes: the caller replaces them.
const ProgramStart the_start = record_start();
std::optional<SpawnedProcess> spawned_process = find_self();

}  // namespace

const ProgramStart& program_start() { return the_start; }

SpawnedProcess* SpawnedProcess::get() { return spawned_process ? &*spawned_process : nullptr; }

SpawnedProcess::SpawnedProcess(std::string call, int rank, int size, int port)
    : call_(std::move(call)),
      rank_(rank),
      size_(size),
      port_(port),
      output_(keep(STDOUT_FILENO)),
      error_(keep(STDERR_FILENO)) {
  fcntl(kReportDescriptor, F_SETFD, FD_CLOEXEC);
  if (rank_ == 0) fcntl(kStoreDescriptor, F_SETFD, FD_CLOEXEC);
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
  for (const auto& [name, value] : rank_variables(rank_, size_, port_, "spawn", kStoreDescriptor))
    setenv(name.c_str(), value.c_str(), 1);
  report(ReportKind::reached, 0, "");
}

void SpawnedProcess::end(ReportKind kind, int value, const std::string& text) {
  std::cout.flush();
  std::fflush(nullptr);
  report(kind, value, text);
  // Not exit(): other threads of the program may still run, and destructors of static objects with them.
  _exit(value);
}

void SpawnedProcess::report(ReportKind kind, int value, const std::string& text) const {
  const ReportHeader header{kind, value, text.size()};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += text;
  for (std::size_t done = 0; done < bytes.size();) {
    const auto length = write(kReportDescriptor, bytes.data() + done, bytes.size() - done);
    if (length < 0 && errno != EINTR) return;  // the caller has ended
    if (length > 0) done += static_cast<std::size_t>(length);
  }
}

}  // namespace trireme
