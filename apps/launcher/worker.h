// The worker: the program that does the work. Executed in place of this process, once to check a command, or as ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/launcher/run_end.h"
#include "apps/launcher/supervisor.h"

namespace trireme::apps {

/// Replaces this process by the worker with these arguments (argv[1] onwards). @throws ConfigError on failure
[[noreturn]] void become_worker(const std::vector<std::string>& arguments);

/// Runs the worker once in a new process, which checks the command. RunEnd::code is 0 without an error.
RunEnd check(Supervisor& supervisor, const std::vector<std::string>& arguments, Show output = Show::yes);

/// Whether one worker first checks for errors that otherwise every rank would report after its start.
enum class Check { no, yes };

/// Runs `ranks` workers until they end. `threads`: of each rank for computing; 0: its own choice. @throws ConfigError
RunEnd run_ranks(Supervisor& supervisor, std::int64_t ranks, std::int64_t threads,
                 const std::vector<std::string>& arguments, Check first, OnStop on_stop = OnStop::end);

}  // namespace trireme::apps
