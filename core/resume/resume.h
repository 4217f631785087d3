// Saves a run and resumes it (contract C8): bitwise equal in the same layout, within C1's bound in another one.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/booster/good_checkpoint.h"
#include "core/checkpoint/train_state.h"
#include "core/setup/run_setup.h"

namespace trireme::train {

class BestModel;
class RunFolder;

/// What a run remembers of its steps' losses and norms (core/train/bad_numbers.h). It is part of a checkpoint, so that
/// a resumed run decides the same.
struct NumbersState {
  std::vector<std::int64_t> left_out{};        ///< steps (from 1) whose batches are not trained, ascending
  std::vector<std::int64_t> series{};          ///< the bad steps in a row up to now
  std::int64_t bad_losses = 0, skips = 0;      ///< in a row
  std::vector<double> losses{};                ///< of the last steps, the oldest first; without train.loss_spike empty
  std::int64_t returned_to = -1, returns = 0;  ///< the step of the last return, and how often in a row it was this one
};
nlohmann::json to_json(const NumbersState& state);
/// `stored`: null for a record of a version that had none.
NumbersState numbers_state(const nlohmann::json& stored);

/// An evaluation on the validation split.
struct Evaluated {
  std::int64_t epoch = 0;                ///< from 1; 0: none yet
  std::int64_t step = 0;                 ///< number of optimizer steps before it
  std::map<std::string, double> values;  ///< of the loss and of the task's metrics
  /// Whether this one is better than `other`. A value that is missing, because it was not finite or another version
  /// saved it, is worse than any finite one; the first evaluation is better than none.
  [[nodiscard]] bool better_than(const Evaluated& other, const Metric& by) const;
};

/// The mean loss of some steps, weighted as the loss within a step.
struct MeanLoss {
  double sum = 0, weight = 0;
  /// `loss`: of a step; with a loss scale it may overflow, and such steps are left out. `of`: the weight of its batch.
  void add(double loss, double of) {
    if (!std::isfinite(loss)) return;
    sum += loss * of;
    weight += of;
  }
  [[nodiscard]] double value() const { return sum / (weight > 0 ? weight : 1); }
};

/// The progress and results of a run.
struct TrainerState {
  checkpoint::Progress at;  ///< the next batch is step at.step_in_epoch of epoch at.epoch
  Evaluated best, last;
  std::int64_t skipped = 0;  ///< steps that changed nothing, because a gradient was not finite
  std::int64_t evaluations_since_best = 0;
  /// The evaluation that is due at this step was not made, because a signal stopped the run before or in it.
  bool evaluation_pending = false;
  MeanLoss epoch_loss;  ///< of the epoch's steps so far
  NumbersState numbers{};
};

/// What a checkpoint of the run holds at this step. The tensors are the run's own, and change with the next step.
checkpoint::CheckpointContents checkpoint_of(const RunSetup& setup, const RunFolder& folder, Boosted& run,
                                             const TrainerState& state, const BestModel& best);

/// Restores the run from the folder's checkpoint, including its best weights if the run keeps them, and removes later
/// steps from the folder. Where a rank finds damage in what it needs, the next older checkpoint is taken; nothing has
/// changed then.
/// Returns the checkpoint, or "" for a new run. Collective: every rank uses what rank 0 found.
/// @throws CheckpointError
std::string resume(const RunSetup& setup, RunFolder& folder, Boosted& run, TrainerState& state, BestModel& best);

/// Whether a run keeps the best weights, which a checkpoint has.
inline NeedsBest needs_best(const RunSetup& setup) { return setup.plan.keeps_best ? NeedsBest::yes : NeedsBest::no; }

/// Restores the run from a checkpoint without damage, including its best weights if the run keeps them. Returns whether
/// the evaluation of its step, if there was one, is in it. Collective. @throws CheckpointError
bool restore_run(const RunSetup& setup, Boosted& run, TrainerState& state, BestModel& best, const GoodCheckpoint& from);

}  // namespace trireme::train
