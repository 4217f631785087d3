// Link: the frames to and from one other rank, over a pair of rings.
//
// What is written waits in two queues: frames (messages that are announced or short, and answers) keep their order, and
// long messages that the other rank has asked for are written in pieces whenever no frame waits, so that they delay
// nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "core/comm/native/ring.h"

namespace trireme::comm::native {

/// The header of everything that one rank writes to another. Between two ranks there is one stream of frames in each
/// direction, so frames arrive in order.
///
/// A short message is one frame with its bytes (eager). A long one is announced (request). Where the receiver can read
/// the sender's memory, it copies the message and confirms that (done). Else it asks for the bytes (clear) and receives
/// them in data frames. So the memory of unexpected messages stays small.
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

class Link;

/// Receives what a link reads.
class FrameSink {
 public:
  /// Where the bytes that follow an eager or data frame go; called when the frame has arrived. Null: not known yet; the
  /// link stops reading, and the next read() asks again, unless Link::take() has told in between.
  virtual std::byte* place(Link& link, const Frame& frame) = 0;
  /// The frame and the bytes that follow it have arrived.
  virtual void arrived(Link& link, const Frame& frame) = 0;
  /// All bytes of this transfer's message have been written.
  virtual void written(std::uint64_t transfer) = 0;

 protected:
  ~FrameSink() = default;
};

class Link {
 public:
  Link(int rank, FrameSink& sink) : rank_(rank), sink_(&sink) {}
  void open(const RingPair& rings) { rings_.emplace(rings); }

  [[nodiscard]] int rank() const { return rank_; }  ///< the other world rank
  [[nodiscard]] bool is_open() const { return rings_.has_value(); }
  [[nodiscard]] bool readable() const { return rings_->readable(); }
  [[nodiscard]] bool idle() const { return !writing_ && frames_.empty() && streams_.empty(); }

  /// Writes a frame and `data` now, or in flush(). Returns whether everything has been written; else the memory must
  /// stay valid until FrameSink::written(transfer).
  bool write(const Frame& frame, const std::byte* data = nullptr, std::size_t bytes = 0, std::uint64_t transfer = 0);
  /// Writes a long message in data frames, in flush(). `receiver`: the transfer that it belongs to there.
  void stream(std::uint64_t receiver, const std::byte* data, std::size_t bytes, std::uint64_t transfer);
  /// Writes what there is room for, about 1 MiB at most. Returns whether it stopped at that, so that there may be room.
  bool flush();
  /// Reads what has arrived, about 1 MiB at most; returns whether there was anything.
  bool read();
  /// The frame at which the link stopped because the place of its bytes was not known.
  [[nodiscard]] const Frame& stopped_at() const { return frame_; }
  /// Reads its bytes to this place. Returns whether all have arrived; else the next read() continues. Then
  /// FrameSink::arrived() is called, from here or from there.
  bool take(std::byte* to);

 private:
  struct Item {
    Frame frame;
    const std::byte* data;
    std::size_t bytes;
    std::uint64_t transfer;  // 0: nobody waits for it
  };
  struct Stream {
    std::uint64_t receiver;
    const std::byte* data;
    std::size_t bytes;
    std::uint64_t transfer;
  };
  bool next();           // chooses current_
  bool write_current();  // false: no room
  int rank_;
  FrameSink* sink_;
  std::optional<RingPair> rings_;

  std::deque<Item> frames_;
  std::deque<Stream> streams_;
  Item current_{};
  bool writing_ = false;     // current_ is valid
  std::size_t written_ = 0;  // bytes of current_

  Frame frame_;  // being read
  std::size_t frame_read_ = 0;
  std::byte* place_ = nullptr;
  std::size_t place_left_ = 0;
};

}  // namespace trireme::comm::native
