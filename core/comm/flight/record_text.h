// What a flight record says, in words for people.
#pragma once

#include <string>

#include "core/comm/flight/reader.h"

namespace trireme::comm::flight {

/// "step 39, microbatch 0, forward, block 1": where the rank is in its step; "-" before the first one.
std::string where(const RankRecord& rank);

/// "all_reduce dp #812 [768] float32"; "recv pp from 1 [8, 16] float32", with the peer's rank in the group.
std::string text_of(const OperationRecord& operation);
/// "-" for null.
std::string text_of(const OperationRecord* operation);

/// "dead", "stopped", "running", ...
std::string state_of(const RankView& rank);

}  // namespace trireme::comm::flight
