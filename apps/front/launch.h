// Starts the worker: in place of this process, once to check a command, or on N ranks, by mpirun or, where there is
// none, by our own launcher (start_ranks.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/front/hosts.h"
#include "apps/front/verdict.h"

namespace trireme::apps {

/// The worker program of this installation: ../libexec/trireme/trireme-worker, relative to this program's folder.
/// @throws ConfigError when it does not exist.
std::string worker_path();

/// True when a launcher (mpirun, srun, torchrun, `trireme launch`) started this process.
bool in_launched_world();
/// The rank that the launcher gave this process; 0 if it gave none.
int launched_rank();

/// Replaces this process by the worker with these arguments (argv[1] onwards). @throws ConfigError on failure
[[noreturn]] void become_worker(const std::vector<std::string>& arguments);

/// Runs the worker once in a new process, which checks the command. RunEnd::code is 0 without an error, and
/// RunEnd::stopped says that a signal ended the check.
RunEnd check(const std::vector<std::string>& arguments, Report report = Report::yes);

/// Whether one worker first checks for errors that otherwise every rank would report after its start.
enum class Check { no, yes };

/// mpirun starts this instead of the worker while the check runs: it waits until the front lets the ranks start, then
/// becomes the worker. `command`: a pipe of the front, the worker, its arguments. If the front closes the pipe instead,
/// it ends without output.
inline constexpr const char* kStartRank = "start-rank";
[[noreturn]] void start_rank(const std::vector<std::string>& command);

/// Runs `ranks` workers until they end, and forwards signals. The exit code is that of the first rank that failed, or
/// 128 + n after signal n. @throws ConfigError
RunEnd run_ranks(std::int64_t ranks, std::int64_t threads, const std::vector<std::string>& arguments, Check first,
                 OnStop on_stop = OnStop::end);

/// Runs any program on these hosts (none: on this machine) by mpirun, which starts its own processes there with `shell`
/// ("": its own choice). @throws ConfigError when there is no mpirun
RunEnd run_program_by_mpirun(const std::vector<std::string>& program, std::int64_t ranks,
                             const std::vector<Host>& hosts, const std::vector<std::string>& shell);

}  // namespace trireme::apps
