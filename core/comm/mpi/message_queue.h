// Lane: the turns of one group's operations under one tag, on this rank. Private to the engine.
//
// MPI delivers the messages of a pair of ranks under one tag in the order of their sends, so this rank must look for
// them, and send its own, in the order of its calls. The engine looks at operations oldest first; one that leaves
// something undone holds that peer, for the rest of the look, against the younger ones of its lane. All under the
// engine's lock.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace trireme::comm::mpi {

/// One direction: what a look holds for its older operations. Peers are group ranks; MPI_ANY_SOURCE is one as well.
class PeerOrder {
 public:
  explicit PeerOrder(int size) : held_(static_cast<std::size_t>(size), 0) {}
  void free_all() {
    std::fill(held_.begin(), held_.end(), 0);
    any_ = some_ = false;
  }
  void hold(int peer) {
    some_ = true;
    if (peer == MPI_ANY_SOURCE)
      any_ = true;
    else
      held_[static_cast<std::size_t>(peer)] = 1;
  }
  /// From any source: whether at least one is free, which of them is for whoever asks to find out.
  [[nodiscard]] bool free(int peer) const {
    return !any_ && (peer == MPI_ANY_SOURCE || held_[static_cast<std::size_t>(peer)] == 0);
  }
  [[nodiscard]] bool all_free() const { return !some_; }

 private:
  std::vector<char> held_;
  bool any_ = false;   // by a receive from any source: its message may be anyone's
  bool some_ = false;  // any of the above
};

struct MessageQueue {
  explicit MessageQueue(int size) : receives(size), sends(size) {}
  /// `look` numbers the engine's looks: nothing is held when a new one begins.
  void begin(unsigned look) {
    if (look == look_) return;
    look_ = look;
    receives.free_all();
    sends.free_all();
  }
  PeerOrder receives, sends;
  int users = 0;  ///< operations under way

 private:
  unsigned look_ = 0;
};

/// The lanes in use.
class MessageQueues {
 public:
  /// An operation begins; in the order of the calls. The lane stays where it is until its last user leaves.
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

}  // namespace trireme::comm::mpi
