// Engine: moves all operations of this process on Open MPI, one object a process, shared by its groups.
//
// MPI is called under one lock (MPI_THREAD_SERIALIZED suffices; a lock of our own costs less than Open MPI's). Who
// waits for an operation drives the engine itself; a thread in the background drives it while operations are
// outstanding and nobody waits, in short looks with sleeps between, so that compute keeps the core. Starting an
// operation never waits for the lock: it goes to a queue that whoever holds the lock empties.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/comm/mpi/message_queue.h"
#include "core/comm/mpi/operation.h"
#include "core/comm/mpi/scratch.h"

namespace trireme::comm::mpi {

class Engine {
 public:
  Engine();
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// @throws CommError after stop().
  void start(const c10::intrusive_ptr<Operation>& operation);
  /// Works until the operation is done; false when `until` passes first.
  bool drive(const Operation& operation, std::optional<Clock::time_point> until);
  /// The background thread is needed soon: somebody waits on a future.
  void wake();
  /// Calls MPI through `body`, alone.
  template <class Body>
  auto exclusively(Body&& body) {
    const std::lock_guard lock(mutex_);
    return body();
  }
  std::shared_ptr<std::byte> scratch(std::size_t bytes) { return scratch_->take(bytes); }
  /// The device whose tensors operations copy from and to: the background thread makes it its current one. Without, it
  /// would work in a context of its own on the first GPU.
  void use(c10::Device device);
  /// Before MPI_Finalize: ends the thread; what is outstanding fails.
  void stop();
  /// After MPI_Finalize, when no late message can arrive any more: frees the buffers of failed operations.
  void release();

 private:
  using Operations = std::vector<c10::intrusive_ptr<Operation>>;
  bool try_poll();                  // false: another thread is at it, or nothing moved
  bool poll(Operations& finished);  // under mutex_
  void take_queue();
  void check_deadlines(Operations& finished);
  void retire(std::size_t index, Operations& finished);
  void background();

  std::mutex mutex_;      // MPI and active_
  Operations active_;     // in the order of their starts
  MessageQueues queues_;  // of the active ones
  Operations broken_;     // failed ones with transfers under way, whose buffers must last: kept to the end
  unsigned polls_ = 0;

  std::mutex queue_mutex_;
  Operations queue_;
  std::atomic<bool> queued_{false};

  std::atomic<std::size_t> outstanding_{0};  // operations started and not done
  std::atomic<int> drivers_{0};              // threads inside drive()
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> idle_{false};  // the thread sleeps until woken
  std::atomic<bool> stopping_{false};
  std::atomic<int> use_device_{-1};  // CUDA device that the thread is to make its current one; -1: it has, or none
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
  std::thread thread_;
};

}  // namespace trireme::comm::mpi
