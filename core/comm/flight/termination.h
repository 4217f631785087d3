// What SIGTERM means to a rank: a request of the user or the cluster, or the end of a run in which another rank has
// died.
#pragma once

#include "core/comm/world.h"

namespace trireme::comm::flight {

/// Handles SIGTERM, unless the program does: the signal is noted in the record, and then ends this process as usual.
/// Where the ranks have no parent of ours, their launcher (such as mpirun) sends it when a rank has died, and the
/// lowest rank that is left prints the table first. To be called after open().
void handle_termination(const LaunchInfo& info);

/// For a handler of SIGTERM that takes it as a request and goes on: notes the signal, and ends this process after all,
/// with the table, if another rank's death is its cause. May be called in a signal handler. True: a thread finds out,
/// and calls say_request() if it is a request.
bool end_if_dying();

}  // namespace trireme::comm::flight
