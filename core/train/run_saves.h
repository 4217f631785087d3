// RunSaves: the checkpoints of a run, saved at once, or with run.async_save beside the steps that follow
// (background_saver.h); and what the user loses if the run ends now.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/booster/vote.h"
#include "core/checkpoint/background_saver.h"
#include "core/checkpoint/storage.h"
#include "core/train/callback.h"
#include "core/train/report/step_clock.h"

namespace trireme::train {

/// All functions are collective but those that say so.
class RunSaves {
 public:
  /// `clock`: it pauses while the training waits for a save.
  RunSaves(RunContext& run, StepClock& clock) : run_(run), clock_(clock) {}
  /// Finds out where checkpoints are stored, and removes what killed runs have left there.
  void start();
  /// The run goes on from this checkpoint, or is new (""). Later checkpoints of its own are set aside.
  void go_on_from(const std::string& checkpoint);
  /// The same after a return to a checkpoint, which is not saved again.
  void return_to(const std::string& checkpoint);
  /// Allocates the host memory for background saves. @pre the run has begun where it goes on
  void reserve();

  /// Saves a checkpoint, unless this step has one. @pre the numbers of all steps are read
  void save();
  /// Keeps the weights of the evaluation just made, the best so far. False: the earlier ones are kept, because these
  /// cannot be written.
  bool keep_best();
  /// Completes the checkpoint in flight, if there is one.
  void settle();
  /// Before a step. Not collective.
  void vote() const;
  /// The votes of a step, in the order of steps. Not collective.
  void read(const VoteCounts& votes);
  /// After a step: goes on with the checkpoint in flight, once all ranks have ended a part of it.
  /// @throws CheckpointError, on every rank, when rank 0 could not record the run
  void after_step();
  /// Frees the memory for background saves. @pre settle()
  void end() { saver_.reset(); }
  /// An error ends the run: the checkpoint in flight is not waited for. Not collective; nor are all that follow.
  void cancel();
  void abandon();

  /// Whether the run can go on from a checkpoint in its own folder.
  [[nodiscard]] bool has_own() const;
  /// The checkpoint that the run would go on from, or "".
  [[nodiscard]] const std::string& newest() const { return newest_; }
  /// The end of the line that says that a signal has stopped the run.
  [[nodiscard]] std::string what_is_saved() const;
  /// Says that the run could not be recorded where it ends for another reason. `error`: the message of that reason, or
  /// "".
  void warn_if_unrecorded(const std::string& error) const;

 private:
  void hold(std::int64_t step, const std::function<std::optional<checkpoint::SavedCheckpoint>()>& part);
  bool bears_failure(const char* what, std::int64_t step, const std::function<void()>& part);
  void await_writers();
  void record(const checkpoint::SavedCheckpoint& saved);
  void throw_if_unrecorded();
  void set_aside_elsewhere(std::int64_t step);
  [[nodiscard]] std::string what_is_unsaved(std::int64_t step) const;

  RunContext& run_;
  StepClock& clock_;
  checkpoint::Storage storage_;                       ///< of the run's folder, unless nothing is saved
  std::optional<checkpoint::BackgroundSaver> saver_;  ///< with run.async_save, from the start on
  LaggedVote written_, failed_;                       ///< the part in progress of a background save
  LaggedVote unrecorded_;                             ///< rank 0 could not record the run
  double held_s_ = 0;                                 ///< the time for which the training has waited for the last save
  std::int64_t saved_step_ = -1;                      ///< of this object's last save
  std::string newest_;
};

}  // namespace trireme::train
