// The end of a rank with an error, or because another one has died: where and by whom it is said, once for all ranks.
#pragma once

#include <functional>
#include <string>

#include "core/launch/launch_info.h"
#include "core/launch/rank_report.h"

namespace trireme::comm::flight {

/// To be called with the error that ends this rank, before the process ends. Marks the record, and returns when the
/// error is said: by the parent, if it is ours; else by one rank of this host, with the table if a peer was lost. That
/// rank calls `say` with the message, or prints the table itself. Of ranks that fail within a moment, the lowest one
/// speaks. A host without rank 0 gives that rank's host seconds to say the same error and to end all ranks.
void report_failure(const ranks::Failure& failure, const LaunchInfo& info,
                    const std::function<void(const std::string& message)>& say);

/// Handles SIGTERM, unless the program does: the signal is noted in the record, and then ends this process as usual.
/// Where the ranks have no parent of ours, their launcher (such as mpirun) sends it when a rank has died, and the
/// lowest rank that is left prints the table first. To be called after open().
void handle_termination(const LaunchInfo& info);

/// For a handler of SIGTERM that takes it as a request and goes on: notes the signal, and ends this process after all,
/// with the table, if another rank's death is its cause. May be called in a signal handler. True: a thread finds out,
/// and calls say_request() if it is a request.
bool end_if_dying();

}  // namespace trireme::comm::flight
