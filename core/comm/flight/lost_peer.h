// The end of a rank whose operation has failed, because a peer is late, gone, or made other calls.
#pragma once

#include <string>

#include "core/comm/world.h"

namespace trireme::comm::flight {

/// Without a parent: for a rank that its launcher ends because another one has died. The lowest rank of this host
/// prints.
void report_death(const std::string& program, const LaunchInfo& info);

/// To be called with the error that ends this rank, before it is printed. Marks the record. Returns whether the error
/// is printed with the table on all ranks: by the parent, by another rank of this host, or by this call, on standard
/// error and after "PROGRAM: ". The caller then prints nothing. Takes some seconds at most.
bool report_lost_peer(const std::string& program, int exit_code, const std::string& text, const LaunchInfo& info);

}  // namespace trireme::comm::flight
