// The end of a rank with an error, or because another one has died: where and by whom it is said, once for all ranks.
#pragma once

#include "core/comm/world.h"
#include "core/launch/rank_report.h"

namespace trireme::comm::flight {

/// To be called with the error that ends this rank, before the process ends. Marks the record. Returns whether the
/// error is said: by the parent, if it is ours; or, if a peer was lost, with the table by one rank of this host. Else
/// the caller says it. Without a parent it takes seconds: a higher rank waits, because rank 0 may have the same error,
/// and ends all others.
bool report_failure(const ranks::Failure& failure, const LaunchInfo& info);

/// Handles SIGTERM, unless the program does: the signal is noted in the record, and then ends this process as usual.
/// Where the ranks have no parent of ours, their launcher (such as mpirun) sends it when a rank has died, and the
/// lowest rank that is left prints the table first. To be called after open().
void handle_termination(const LaunchInfo& info);

/// For a handler of SIGTERM that takes it as a request and goes on: notes the signal, and ends this process after all,
/// with the table, if another rank's death is its cause. May be called in a signal handler. True: a thread finds out,
/// and calls say_request() if it is a request.
bool end_if_dying();

}  // namespace trireme::comm::flight
