// RunWatch: what a run does about bad numbers (bad_numbers.h) and about ranks whose copies of the weights differ: it
// ends with a report, or returns to a checkpoint.
#pragma once

#include <optional>

#include "core/booster/good_checkpoint.h"
#include "core/train/bad_numbers.h"
#include "core/train/callback.h"
#include "core/train/replica_check.h"
#include "core/train/run_saves.h"

namespace trireme::train {

/// Thrown through the loop, on every rank after the same step.
struct ReturnToCheckpoint {
  GoodCheckpoint from;
  BadStep bad;
};

class RunWatch {
 public:
  RunWatch(RunContext& run, RunSaves& saves)
      : run_(run), saves_(saves), numbers_(run.setup.config.train, run.state.numbers) {}
  [[nodiscard]] BadNumbers& numbers() { return numbers_; }
  /// Takes in the numbers of a step, in the order of steps.
  void see(const StepLog& log);
  /// Acts on a bad step, if one is due; see BadNumbers::due(). Collective. @throws NonFiniteError, ReturnToCheckpoint
  void act(bool all_are_read);
  /// Compares the ranks' copies of the weights after each run.compare_replicas_every steps. Collective.
  void compare_replicas();
  /// Restores the run, which then goes on without the batches of the bad steps. Collective.
  void return_to(const ReturnToCheckpoint& back);

 private:
  RunContext& run_;
  RunSaves& saves_;
  BadNumbers numbers_;
  std::optional<ReplicaCheck> replicas_;
};

}  // namespace trireme::train
