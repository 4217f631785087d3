// Engine: progresses all operations of this process on Open MPI. There is one per process, shared by its groups.
//
// MPI is called under one lock (MPI_THREAD_SERIALIZED suffices; a lock in Trireme costs less than Open MPI's). A thread
// that waits for an operation drives the engine itself. While operations are outstanding and no thread waits, a
// background thread drives it, in short polls with sleeps between, so that the core is free for computation. Starting
// an operation never waits for the lock: the operation is put into a queue that the holder of the lock empties.
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
  /// Drives the engine until the operation is done; false when `until` passes first.
  bool drive(const Operation& operation, std::optional<Clock::time_point> until);
  /// Wakes the background thread, because a thread waits on a future.
  void wake();
  /// Calls body, which may call MPI, under the lock.
  template <class Body>
  auto exclusively(Body&& body) {
    const std::lock_guard lock(mutex_);
    return body();
  }
  std::shared_ptr<std::byte> scratch(std::size_t bytes) { return scratch_->take(bytes); }
  /// The device whose tensors operations copy. The background thread makes it its current device; otherwise it would
  /// create a context of its own on the first GPU.
  void use(c10::Device device);
  /// To be called before MPI_Finalize: ends the thread; outstanding operations fail.
  void stop();
  /// To be called after MPI_Finalize, when no late message can arrive: frees the buffers of failed operations.
  void release();

 private:
  using Operations = std::vector<c10::intrusive_ptr<Operation>>;
  bool try_poll();                  // false: another thread holds the lock, or nothing progressed
  bool poll(Operations& finished);  // under mutex_
  void take_queue();
  void check_deadlines(Operations& finished);
  void retire(std::size_t index, Operations& finished);
  void background();

  std::mutex mutex_;      // MPI and active_
  Operations active_;     // in the order of their starts
  MessageQueues queues_;  // of the active operations
  Operations broken_;     // failed operations with transfers in progress, whose buffers must stay valid until release()
  unsigned polls_ = 0;

  std::mutex queue_mutex_;
  Operations queue_;
  std::atomic<bool> queued_{false};

  std::atomic<std::size_t> outstanding_{0};  // operations that are started and not done
  std::atomic<int> drivers_{0};              // threads inside drive()
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<bool> idle_{false};  // the background thread sleeps until notified
  std::atomic<bool> stopping_{false};
  std::atomic<int> use_device_{-1};  // CUDA device that the background thread has to make current; -1: done, or none
  std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
  std::thread thread_;
};

}  // namespace trireme::comm::mpi
