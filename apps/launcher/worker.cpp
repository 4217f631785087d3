#include "apps/launcher/worker.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "apps/command_line.h"
#include "apps/launcher/installation.h"
#include "apps/report.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/launch/launch_info.h"

namespace trireme::apps {
namespace {

/// libgomp crashes when it cannot create the threads that OMP_NUM_THREADS asks for. @throws ConfigError
void check_openmp_threads() {
  constexpr long kMost = 4096;
  const auto text = environment("OMP_NUM_THREADS");
  if (text.empty()) return;
  char* end = nullptr;
  const long threads = std::strtol(text.c_str(), &end, 10);
  const bool ends = *end == '\0' || *end == ',';  // a list has a number for each level of nesting
  if (end == text.c_str() || !ends || threads < 1 || threads > kMost)
    throw ConfigError(fmt::format("OMP_NUM_THREADS={}: must be a number from 1 to {}", text, kMost));
}

/// Where LibTorch's libraries have no place, they end the process without a word of ours, or hang.
/// @throws OutOfMemoryError
void check_address_space() {
  constexpr rlim_t kMebibyte = 1 << 20, kLeast = 512 * kMebibyte;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < kLeast)
    throw OutOfMemoryError(fmt::format(
        "this process may use {} MiB of address space, but LibTorch alone needs {}: raise the limit (ulimit "
        "-v)",
        limit.rlim_cur / kMebibyte, kLeast / kMebibyte));
}

/// Whether a launcher has started this process. One whose variables are wrong is one, too.
bool is_launched() {
  try {
    return detect_launch().launcher != Launcher::alone;
  } catch (const ConfigError&) {
    return true;
  }
}

/// Sets the worker's library paths and the like in this process's environment, once. @throws ConfigError
void prepare_environment() {
  static bool prepared = false;
  if (std::exchange(prepared, true)) return;
  check_openmp_threads();
  check_address_space();
  set_library_paths(prefix());
  export_terminal(is_launched());
  // OpenMP threads spin while they wait unless configured otherwise. With loader threads and other ranks on the same
  // cores, that costs more than it saves.
  setenv("OMP_WAIT_POLICY", "passive", 0);
}

/// The worker of this installation, ../libexec/trireme/trireme-worker relative to this program's folder, with these
/// arguments. @throws ConfigError when it does not exist
ranks::Program worker(const std::vector<std::string>& arguments) {
  const auto path = prefix() + "/" TRIREME_LIBEXEC "/trireme-worker";
  if (!is_program(path))
    throw ConfigError(fmt::format("{} is missing: the build or the installation is not complete", path));
  prepare_environment();
  ranks::Program program{.words = {path}, .environment = whole_environment()};
  program.words.insert(program.words.end(), arguments.begin(), arguments.end());
  return program;
}

}  // namespace

void become_worker(const std::vector<std::string>& arguments) {
  auto program = worker(arguments);
  execv(program.words[0].c_str(), ranks::pointers(program.words).data());
  throw ConfigError(fmt::format("cannot run {}: {}", program.words[0], std::strerror(errno)));
}

RunEnd check(Supervisor& supervisor, const std::vector<std::string>& arguments, Show output) {
  auto program = worker(arguments);
  set_variable(program.environment, kCheckVariable, "1");
  return supervisor.check(program, output);
}

RunEnd run_ranks(Supervisor& supervisor, std::int64_t ranks, std::int64_t threads,
                 const std::vector<std::string>& arguments, OnStop on_stop) {
  auto program = worker(arguments);
  set_variable(program.environment, kRanksVariable, std::to_string(ranks));
  if (threads > 0) set_variable(program.environment, "OMP_NUM_THREADS", std::to_string(threads));
  return supervisor.run({.program = std::move(program),
                         .ranks = static_cast<int>(ranks),
                         .kind = ranks::Ranks::of_trireme,
                         .on_stop = on_stop});
}

}  // namespace trireme::apps
