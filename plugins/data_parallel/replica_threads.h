// ReplicaThreads: runs a function for several replicas of a model at once, each on a thread of its own.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/thread_pool.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::plugins {

class ReplicaThreads {
 public:
  /// One replica per device of the list. The threads share the calling thread's number of intra-op threads equally.
  /// `in_turn`: the replicas run on the calling thread, one after the other.
  ReplicaThreads(std::vector<c10::Device> devices, bool in_turn);

  /// Calls body(r) for the first `count` replicas, with the thread-local state and the streams that the calling thread
  /// has (gradient mode, inference, autocast, profiling). Returns when all calls have ended.
  /// @throws what the first replica in order has thrown, once; the threads remain usable
  void run(std::size_t count, const std::function<void(std::size_t replica)>& body);

 private:
  std::vector<c10::Device> devices_;
  std::unique_ptr<c10::ThreadPool> pool_;  ///< null: in turn
};

}  // namespace trireme::plugins
