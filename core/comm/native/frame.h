// Frame: the header of everything that one rank writes to another. Between two ranks there is one stream of frames in
// each direction, so frames arrive in order.
//
// A short message is one frame with its bytes (eager). A long one is announced (request). Where the receiver can read
// the sender's memory, it copies the message and confirms that (done). Else it asks for the bytes (clear) and receives
// them in data frames. So the memory of unexpected messages stays small.
#pragma once

#include <cstdint>

namespace trireme::comm::native {

struct Frame {
  enum class Kind : std::uint32_t {
    eager = 1,  ///< context, tag, bytes; the message follows
    request,    ///< context, tag, bytes, sender (the transfer), address of the message in the sender's memory
    done,       ///< sender: its message was copied
    clear,      ///< sender: it may send; receiver: the transfer there
    data,       ///< receiver; the next `bytes` of the message follow
    goodbye,    ///< the rank will write nothing more; sender: 1 + the world rank whose end is why, or 0
  };
  Kind kind = Kind::goodbye;
  std::int32_t tag = 0;
  std::uint64_t context = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sender = 0, receiver = 0;
  std::uint64_t address = 0;
};
static_assert(sizeof(Frame) == 48);

}  // namespace trireme::comm::native
