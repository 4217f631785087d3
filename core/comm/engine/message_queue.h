// MessageQueue: the order of one group's operations under one tag, on this rank. Private to the engine.
//
// A wire delivers the messages between two ranks under one tag in the order of their sends, so this rank must match
// them, and send its own, in the order of its calls. The engine polls operations oldest first. An operation that still
// has messages of a peer outstanding holds that peer against the younger operations of its queue, for the rest of the
// poll. Everything here is under the engine's lock.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/comm/engine/wire.h"

namespace trireme::comm::engine {

/// PeerOrder: the peers that older operations hold in one direction during a poll. Peers are group ranks;
/// kAnySource is allowed too.
class PeerOrder {
 public:
  explicit PeerOrder(int size) : held_(static_cast<std::size_t>(size), 0) {}
  void free_all() {
    std::fill(held_.begin(), held_.end(), 0);
    any_ = some_ = false;
  }
  void hold(int peer) {
    some_ = true;
    if (peer == kAnySource)
      any_ = true;
    else
      held_[static_cast<std::size_t>(peer)] = 1;
  }
  /// For kAnySource: whether any source may be free; the caller has to find out which.
  [[nodiscard]] bool free(int peer) const {
    return !any_ && (peer == kAnySource || held_[static_cast<std::size_t>(peer)] == 0);
  }
  [[nodiscard]] bool all_free() const { return !some_; }

 private:
  std::vector<char> held_;
  bool any_ = false;   // held by a receive from any source, whose message may come from any peer
  bool some_ = false;  // any peer is held
};

struct MessageQueue {
  explicit MessageQueue(int size) : receives(size), sends(size) {}
  /// `look`: the number of the engine's current poll. A new poll releases all peers.
  void begin(unsigned look) {
    if (look == look_) return;
    look_ = look;
    receives.free_all();
    sends.free_all();
  }
  PeerOrder receives, sends;
  int users = 0;  ///< active operations

 private:
  unsigned look_ = 0;
};

/// The queues that are in use.
class MessageQueues {
 public:
  /// Adds an operation, in the order of the calls. The queue's address is valid until its last user leaves.
  MessageQueue& enter(const void* channel, int tag, int size) {
    auto& queue = queues_.try_emplace({channel, tag}, size).first->second;
    ++queue.users;
    return queue;
  }
  void leave(const void* channel, int tag) {
    const auto found = queues_.find({channel, tag});
    if (--found->second.users == 0) queues_.erase(found);
  }

 private:
  std::map<std::pair<const void*, int>, MessageQueue> queues_;
};

}  // namespace trireme::comm::engine
