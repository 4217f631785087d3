// Starting the worker: in place of this process, once to check, or N of them under mpirun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::apps {

/// The worker program of this installation: ../libexec/trireme/trireme-worker beside the folder of this program.
/// @throws ConfigError when it is not there.
std::string worker_path();

/// True when mpirun, srun or torchrun started this process.
bool in_launched_world();
/// The number that the launcher gave this process; 0 where it says none.
int launched_rank();

/// Becomes the worker with these arguments (argv[1] onwards). Returns only by @throws ConfigError.
[[noreturn]] void become_worker(const std::vector<std::string>& arguments);

/// Runs the worker once, in a process of its own, with arguments that ask it to check. Returns its exit code, 0:
/// nothing is wrong.
int check(const std::vector<std::string>& arguments);

/// Whether one worker first checks what the ranks would all refuse, each of them after its start.
enum class Check { no, yes };

/// What mpirun runs in a worker's place while the check goes on: waits until the front that started mpirun lets the
/// ranks start, then becomes the worker. `words`: a pipe of the front's, the worker, its arguments. Ends quietly when
/// the front closes the pipe instead.
inline constexpr const char* kStartRank = "start-rank";
[[noreturn]] void start_rank(const std::vector<std::string>& words);

/// Runs `ranks` workers under mpirun until they end; passes signals on. Returns the exit code: that of the first rank
/// that failed, or 128 + n after signal n. @throws ConfigError when mpirun is not installed.
int run_ranks(std::int64_t ranks, std::int64_t threads, const std::vector<std::string>& arguments, Check first);

}  // namespace trireme::apps
