// The end of a rank with an error: where and by whom it is said, once for all ranks.
#pragma once

#include "core/comm/world.h"
#include "core/launch/rank_report.h"

namespace trireme::comm::flight {

/// To be called with the error that ends this rank, before the process ends. Marks the record. Returns whether the
/// error is said: by the parent, if it is ours; or, if a peer was lost, with the table by one rank of this host. Else
/// the caller says it. Without a parent it takes seconds: a higher rank waits, because rank 0 may have the same error,
/// and ends all others.
bool report_failure(const ranks::Failure& failure, const LaunchInfo& info);

/// Without a parent: for a rank that its launcher ends because another one has died. The lowest rank of this host
/// prints.
void report_death(const std::string& program, const LaunchInfo& info);

}  // namespace trireme::comm::flight
