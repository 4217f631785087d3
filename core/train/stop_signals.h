// StopSignals: while one exists, SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask for a stop instead of ending the process. What
// to do about it is left to the training loop (stop.h); a handler may do nothing but note it, and say so.
#pragma once

#include <csignal>

namespace trireme::train {

/// One at a time in a process. Not for a process that has handlers of its own for these signals.
class StopSignals {
 public:
  /// A second signal, when it comes more than a second after the first, ends the process at once with 128 + n:
  /// launchers and terminals may both pass on the same one. `grace_seconds`: the process also ends that long after the
  /// first signal, with a message, before a cluster kills it; 0: it has as long as it needs. A signal that is ignored
  /// (nohup, or a shell's background job) stays ignored.
  explicit StopSignals(unsigned grace_seconds);
  /// Restores the handlers before it.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The first signal since the object was made; 0: none. Of any object, or of none.
  [[nodiscard]] static int received();

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
  struct sigaction before_[5];
};

}  // namespace trireme::train
