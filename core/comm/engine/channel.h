// Channel: one group's part of a wire, on this rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/flight/recorder.h"

namespace trireme::comm::engine {

/// The number of messages of one channel on this rank since it was created.
struct Traffic {
  std::atomic<std::int64_t> sent{0}, received{0};
};

struct Channel {
  std::uint64_t context = 0;  ///< what the wire knows the group by: see Wire::open
  int rank = 0, size = 1;
  std::vector<int> ranks;  ///< world ranks, in group order
  std::string axis;
  flight::GroupName flight{};  ///< the group in the flight record
  int tag_half = 0;            ///< smaller tags belong to the callers; collectives use tags from here on
  std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
};

}  // namespace trireme::comm::engine
