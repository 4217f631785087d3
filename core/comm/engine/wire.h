// Wire: moves messages between the ranks of this run. The engine and everything above it is the same for every wire.
//
// A message belongs to a channel (the group it was sent in) and a tag. Between two ranks, messages of one channel and
// tag arrive in the order in which they were sent, and are matched in that order. A receiver matches a message first,
// which tells its size, and then says where to put it. No call blocks.
//
// All members except those for sleeping are called under the engine's lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/flight/recorder.h"

namespace trireme::comm::engine {

/// The number of messages of one channel on this rank since it was created.
struct Traffic {
  std::atomic<std::int64_t> sent{0}, received{0};
};

/// One group's part of a wire, on this rank.
struct Channel {
  std::uint64_t context = 0;  ///< what the wire knows the group by: see Wire::open
  int rank = 0, size = 1;
  std::vector<int> ranks;  ///< world ranks, in group order
  std::string axis;
  flight::GroupName flight{};  ///< the group in the flight record
  int tag_half = 0;            ///< smaller tags belong to the callers; collectives use tags from here on
  std::shared_ptr<Traffic> traffic = std::make_shared<Traffic>();
};

using Clock = std::chrono::steady_clock;

/// A receive with this peer takes a message of any rank of the group.
constexpr int kAnySource = -1;

/// A transfer in progress; kNoRequest once it is complete. Its meaning is the wire's.
using Request = std::uintptr_t;
constexpr Request kNoRequest = 0;

/// A message that has been matched and must be received.
struct Matched {
  int source;  ///< group rank
  std::size_t bytes;
  std::uintptr_t message;  ///< the wire's name for it
};

/// A transfer failed. `text`: the wire's reason.
struct WireError : std::exception {
  WireError(int with, std::string reason) : peer(with), text(std::move(reason)) {}
  [[nodiscard]] const char* what() const noexcept override { return text.c_str(); }
  int peer;  ///< group rank
  std::string text;
};

class Wire {
 public:
  virtual ~Wire() = default;
  /// c10d's name of backends on this wire.
  [[nodiscard]] virtual const char* name() const = 0;
  /// A message may not be longer than this; the engine splits longer ones.
  [[nodiscard]] virtual std::size_t longest_message() const = 0;

  /// A new channel's context, called on all ranks of a group together. `number`: the same on all of them, and different
  /// for groups that exist at the same time on any rank. @throws CommError.
  virtual std::uint64_t open(const Channel& world, const std::vector<int>& ranks, const std::string& axis,
                             std::uint64_t number) = 0;

  /// To be called before matching and testing: lets bytes move. Returns whether to call it once more before a sleep.
  virtual bool progress() { return false; }
  /// Starts to send; the memory must stay valid until the request is complete. @throws WireError.
  virtual Request send(const Channel& channel, int tag, int peer, const std::byte* data, std::size_t bytes) = 0;
  /// The oldest message that has arrived from this peer (or kAnySource) and was not matched. @throws WireError.
  virtual std::optional<Matched> match(const Channel& channel, int tag, int peer) = 0;
  /// Receives a matched message into `data`, of at least its size. @throws WireError.
  virtual Request receive(const Channel& channel, const Matched& matched, std::byte* data) = 0;
  /// Sets the completed ones of these requests to kNoRequest. Returns their number. `peers[i]`: the group rank of
  /// requests[i]. @throws WireError.
  virtual std::size_t test(std::span<Request> requests, std::span<const int> peers) = 0;

  /// Says that no message under this tag can come from this peer any more, because its process has ended, and none is
  /// there to be matched; kAnySource: from any of the others. The number orders the ends, because one rank's end often
  /// makes others end.
  [[nodiscard]] virtual std::optional<int> ended(const Channel& /*channel*/, int /*tag*/, int /*peer*/) const {
    return std::nullopt;
  }
  /// Looks for processes that have ended; called when a wait has lasted for some time.
  virtual void check_peers() {}

  // Sleeping, without the lock. A wire whose peers cannot wake a rank has no sleep: the engine polls it.
  /// The time for which a waiting thread should poll before it sleeps; none: the wire cannot wake a thread.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> spin_time() const { return std::nullopt; }
  /// Announces a sleep. Whatever arrives from now on, and wake(), lets the sleep() that must follow return at once. So
  /// the caller looks once more between the two.
  virtual std::uint32_t prepare_sleep() { return 0; }
  virtual void sleep(std::uint32_t /*ticket*/, Clock::duration /*at_most*/) {}
  /// Instead of sleep().
  virtual void cancel_sleep() {}
  /// Wakes all sleeping threads of this process.
  virtual void wake() {}
};

}  // namespace trireme::comm::engine
