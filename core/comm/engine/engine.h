// Engine: progresses all operations of this process on its wire. There is one per process, shared by its groups.
//
// The wire is called under one lock. A thread that waits for an operation drives the engine itself. While operations
// are outstanding and no thread waits, a background thread drives it, so that the core is free for computation.
// Starting an operation never waits for the lock: the operation is put into a queue that the holder of the lock
// empties.
//
// A thread that finds nothing to do polls for a short time, then sleeps until a peer wakes it. Where the wire cannot
// wake a thread (Open MPI), it polls between short sleeps, and so does it while a device copies a tensor to the host.
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

#include "core/comm/engine/message_queue.h"
#include "core/comm/engine/operation.h"
#include "core/comm/engine/scratch.h"
#include "core/comm/engine/wire.h"

namespace trireme::comm::engine {

class Engine {
 public:
  explicit Engine(std::shared_ptr<Wire> wire);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// @throws CommError after stop().
  void start(const c10::intrusive_ptr<Operation>& operation);
  /// Drives the engine until the operation is done; false when `until` passes first.
  bool drive(const Operation& operation, std::optional<Clock::time_point> until);
  /// Wakes the background thread, because a thread waits on a future.
  void wake();
  /// For the lock's holder, and for the wire's names.
  [[nodiscard]] Wire& wire() const { return *wire_; }
  /// Calls body, which may call the wire, under the lock.
  template <class Body>
  auto exclusively(Body&& body) {
    const std::lock_guard lock(mutex_);
    return body();
  }
  std::shared_ptr<std::byte> scratch(std::size_t bytes) { return scratch_->take(bytes); }
  /// The device whose tensors operations copy. The background thread makes it its current device; otherwise it would
  /// create a context of its own on the first GPU.
  void use(c10::Device device);
  /// To be called before the wire is shut down: ends the thread; outstanding operations fail.
  void stop();
  /// To be called after the wire was shut down, when no late message can arrive: frees the buffers of failed
  /// operations.
  void release();

 private:
  using Operations = std::vector<c10::intrusive_ptr<Operation>>;
  bool try_poll();                  // false: another thread holds the lock, or nothing progressed
  bool poll(Operations& finished);  // under mutex_
  void take_queue();
  void check_deadlines(Operations& finished);
  void fail_at(std::size_t index, std::exception_ptr error, Operations& finished);
  void fail_all(Operations& finished);  // with the wire's failure
  void retire(std::size_t index, Operations& finished);
  void complete(const Operations& finished);  // without the lock
  /// Looks for messages and for deadlines once more, then sleeps until woken; returns whether there was anything.
  bool sleep(const Operation* waits_for, std::optional<Clock::time_point> until);
  void background();

  std::shared_ptr<Wire> wire_;
  std::mutex mutex_;      // the wire and active_
  Operations active_;     // in the order of their starts
  MessageQueues queues_;  // of the active operations
  Operations broken_;     // failed operations with transfers in progress, whose buffers must stay valid until release()
  std::exception_ptr failure_;  // of the wire, which is not called any more: all operations fail with it
  unsigned polls_ = 0;
  Clock::time_point checked_;               // when deadlines and peers were last looked at
  std::atomic<bool> device_copies_{false};  // an active operation waits for a device, which wakes nobody

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

}  // namespace trireme::comm::engine
