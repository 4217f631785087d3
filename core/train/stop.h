// Stops a run from outside its loop: by a signal or after train.max_seconds. Every rank stops after the same step.
//
// In training, a rank's request travels with the loss, in the reduction that every step makes (Booster::vote()),
// and the answer is read when the step's numbers are on the host, so that neither costs a message or a wait. Elsewhere,
// where no step is made, PolledVote asks all ranks.
//
// A signal stops the run at the end of the step, or within an evaluation, which a resumed run then makes; the run is
// saved and StoppedBySignal thrown. After train.max_seconds the run is evaluated and exported like a finished one.
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/booster/vote.h"
#include "core/comm/world.h"
#include "core/train/callback.h"
#include "core/train/readback.h"

namespace trireme::train {

inline constexpr const char* kMaxSeconds = "train.max_seconds";

/// Thrown by Trainer::train() on every rank when a signal has stopped the run, after it was saved.
class StoppedBySignal : public std::runtime_error {
 public:
  /// `saved`: the checkpoint that the run goes on from, or "" when it has none.
  StoppedBySignal(int number, std::string saved);
  [[nodiscard]] int signal() const { return signal_; }
  [[nodiscard]] const std::string& saved() const { return saved_; }

 private:
  int signal_;
  std::string saved_;
};

/// Whether any rank says yes, with the same answer on every rank, by a message of its own.
class PolledVote {
 public:
  explicit PolledVote(comm::World& world)
      : world_(world), lag_(static_cast<std::size_t>(Readback::lag(world.device()))) {}
  /// Call it on every rank equally often. True from `lag` calls after the first call in which a rank said yes.
  bool any(bool mine);

 private:
  comm::World& world_;
  std::size_t lag_;
  LaggedVote yes_;
  Readback answers_;
};

/// Ends an evaluation on every rank, because a rank got a signal.
struct EvaluationStopped {};
/// For one evaluation, to be called before each of its batches (forward_all()). It throws EvaluationStopped.
std::function<void()> end_on_signal(comm::World& world);

/// While one exists, SIGTERM, SIGINT, SIGHUP and SIGUSR1 ask for a stop instead of ending the process. What to do about
/// it is left to the training loop; a handler may do nothing but note it, and say so. One at a time in a process. Not
/// for a process that has handlers of its own for these signals.
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

/// Sets RunContext::stopped_by after the step in which a rank got a signal (kBySignal), or rank 0's clock passed the
/// limit (kMaxSeconds).
class StopOnRequest final : public RunCallback {
 public:
  static constexpr const char* kBySignal = "a signal";
  /// `max_seconds`: unset for no limit. `on_signals`: StopSignals are caught from on_start() on; `grace_seconds` is
  /// theirs.
  StopOnRequest(std::optional<double> max_seconds, bool on_signals, unsigned grace_seconds);
  void on_start(RunContext& run) override;
  void on_step_begin(RunContext& run) override;
  void on_log(RunContext& run, const StepLog& log) override;
  void on_step_end(RunContext& run, const StepEnd& step) override;

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<double> max_seconds_;
  bool on_signals_;
  unsigned grace_;
  std::optional<StopSignals> signals_;
  Clock::time_point begin_;
  LaggedVote asked_;
  std::string asked_by_;
};

}  // namespace trireme::train
