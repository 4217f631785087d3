// Runs a command on one or more ranks: the only place that converts errors to messages and exit codes.
//
// Before the world has started every rank gets the same error (for example from an invalid file); after it any number
// of ranks may. Our parent says one for all of them. Without it, the lowest rank says its error at once and ends all
// others; a higher rank waits a moment first, and says its error only if it still runs, because then the error is only
// its own.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "apps/report.h"
#include "core/base/verdict.h"
#include "core/comm/world.h"

namespace trireme::apps {

/// `prepare` runs before a process group exists, `body` with the world. Returns the exit code.
int run_on_ranks(const std::function<comm::WorldOptions(const LaunchInfo&)>& prepare,
                 const std::function<void(comm::World&)>& body);

/// The message of a verdict, with a request to report unexpected errors.
std::string message_of(const Verdict& verdict);

/// Says an error that is about to end the body before what the body still has to do, such as waiting for a disk.
/// run_on_ranks() does not repeat it. Errors of communication are left to it.
void say_early(const std::exception_ptr& error, const LaunchInfo& info);

/// Ends this process after an exception left a thread (such as NCCL's watchdog). One rank prints the message.
[[noreturn]] void end_with(const std::exception_ptr& error);

}  // namespace trireme::apps
