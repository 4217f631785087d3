// Running a command on one rank or many: the one place where an error becomes a message and an exit code.
//
// Before the world has started every rank meets the same error (a bad file, say), and after it any number of them may:
// the lowest rank speaks at once and ends all; a higher one waits a moment first, and speaks only if it is still there,
// because then the error is its own.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "apps/report.h"
#include "core/base/verdict.h"
#include "core/comm/world.h"
#include "core/config/run_config.h"

namespace trireme::apps {

/// `prepare` runs before any process group exists, `body` with the world. Returns the exit code.
int run_on_ranks(const std::function<comm::WorldOptions(const comm::LaunchInfo&)>& prepare,
                 const std::function<void(comm::World&)>& body);

/// The message of a verdict, with a request to report what should not happen.
std::string message_of(const Verdict& verdict);

/// Ends this process on an exception that left a thread of its own (NCCL's watchdog, say): one message of all ranks'.
[[noreturn]] void end_with(const std::exception_ptr& error);

}  // namespace trireme::apps
