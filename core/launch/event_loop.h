// Waits for several descriptors at once and calls the function of each one that can be read or written.
#pragma once

#include <csignal>
#include <functional>
#include <map>
#include <utility>

namespace trireme::ranks {

class EventLoop {
 public:
  /// Calls `on_readable` when `descriptor` can be read or is at its end, until forget().
  void watch(int descriptor, std::function<void()> on_readable);
  /// The same when it can be written, or nobody reads it any more.
  void watch_writable(int descriptor, std::function<void()> on_writable);
  void forget(int descriptor) { watched_.erase(descriptor); }
  /// Waits at most this time for a descriptor.
  void run_once(int milliseconds);

 private:
  struct Watched {
    short events;
    std::function<void()> function;
  };
  std::map<int, Watched> watched_;
};

/// Watches a descriptor while it exists.
class Watch {
 public:
  Watch(EventLoop& loop, int descriptor, std::function<void()> on_readable) : loop_(loop), descriptor_(descriptor) {
    loop.watch(descriptor, std::move(on_readable));
  }
  ~Watch() { loop_.forget(descriptor_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  EventLoop& loop_;
  int descriptor_;
};

/// The signals that a launcher handles, but for those that it ignores from its start, as a descriptor that can be
/// watched. They stay blocked, so that none is lost.
class SignalQueue {
 public:
  /// @throws ConfigError
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// The signals that this process blocked before: new processes block these.
  [[nodiscard]] const sigset_t& blocked_before() const { return before_; }
  /// The next signal that has arrived; 0: none.
  [[nodiscard]] int next() const;

 private:
  int descriptor_;
  sigset_t before_{};
};

}  // namespace trireme::ranks
