// The worker: the program that does the work. Executed in place of this process, as ranks, or once to check whether
// they could start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/launcher/supervisor.h"

namespace trireme::apps {

/// Replaces this process by the worker with these arguments (argv[1] onwards). @throws ConfigError on failure
[[noreturn]] void become_worker(const std::vector<std::string>& arguments);

/// Runs the worker once in a new process, which checks whether the command could run. RunEnd::code is 0 if it could.
RunEnd check(Supervisor& supervisor, const std::vector<std::string>& arguments, Show output = Show::yes);

/// Runs `ranks` workers until they end. `threads`: of each rank for computing; 0: its own choice. @throws ConfigError
RunEnd run_ranks(Supervisor& supervisor, std::int64_t ranks, std::int64_t threads,
                 const std::vector<std::string>& arguments, OnStop on_stop = OnStop::end);

}  // namespace trireme::apps
