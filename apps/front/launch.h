// Starts the worker: in place of this process, once to check a command, or N times under mpirun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// The worker program of this installation: ../libexec/trireme/trireme-worker, relative to this program's folder.
/// @throws ConfigError when it does not exist.
std::string worker_path();

/// True when mpirun, srun or torchrun started this process.
bool in_launched_world();
/// The rank that the launcher gave this process; 0 if it gave none.
int launched_rank();

/// Replaces this process by the worker with these arguments (argv[1] onwards). @throws ConfigError on failure
[[noreturn]] void become_worker(const std::vector<std::string>& arguments);

/// Runs the worker once in a new process, with arguments that make it check the command. Returns its exit code; 0: no
/// error.
int check(const std::vector<std::string>& arguments);

/// Whether one worker first checks for errors that otherwise every rank would report after its start.
enum class Check { no, yes };

/// mpirun starts this instead of the worker while the check runs: it waits until the front lets the ranks start, then
/// becomes the worker. `command`: a pipe of the front, the worker, its arguments. If the front closes the pipe instead,
/// it ends without output.
inline constexpr const char* kStartRank = "start-rank";
[[noreturn]] void start_rank(const std::vector<std::string>& command);

/// Runs `ranks` workers under mpirun until they end, and forwards signals. Returns the exit code of the first rank that
/// failed, or 128 + n after signal n. @throws ConfigError when mpirun is not installed.
int run_ranks(std::int64_t ranks, std::int64_t threads, const std::vector<std::string>& arguments, Check first);

}  // namespace trireme::apps
