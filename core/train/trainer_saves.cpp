// How a Trainer saves checkpoints: at once, or with run.async_save beside the steps that follow (background_saver.h).
#include <ATen/ops/full.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/booster/run_state.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/launch/parent.h"
#include "core/train/trainer.h"

namespace trireme::train {

/// Allocates the host memory for background saves. Collective.
void Trainer::prepare_saver() {
  const auto& run = p_.config.run;
  if (!run.async_save || run.keep_checkpoints == 0 || is_over()) return;
  saver_.emplace(booster_.mesh(), storage_);
  saver_->reserve(contents_of(run_));
  auto bytes = at::full({}, saver_->capacity(), at::TensorOptions(at::kLong).device(world_.device()));
  world_.group().all_reduce(bytes, comm::ReduceOp::max);
  context_.staging_bytes = bytes.item<std::int64_t>();
}

/// Saves a checkpoint, unless this step has one. @pre finish_steps()
void Trainer::save() {
  const auto step = state_.at.global_step;
  const auto keep = p_.config.run.keep_checkpoints;
  if (keep == 0 || std::exchange(saved_step_, step) == step) return;
  throw_if_unrecorded();  // a run that goes on from this step would lack the lines before it
  std::optional<checkpoint::SavedCheckpoint> saved;
  hold_for_save(step, [&] {
    save_held_s_ = 0;
    auto contents = checkpoint_of(p_, *folder_, run_, state_, best_model_);
    if (saver_ && !is_over())
      saver_->begin(folder_->dir(), std::move(contents), keep);
    else  // the end of the training has to wait for it anyway
      saved = checkpoint::CheckpointSave(folder_->dir(), std::move(contents), keep, booster_.mesh(), storage_).run();
  });
  await_writers();
  if (saved) record_save(*saved);
}

/// From the next step on the votes tell when this part of a background save has ended on all ranks.
void Trainer::await_writers() {
  written_.begin();
  save_failed_.begin();
}

/// Does a part of a save, of a checkpoint or of the best weights. An error ends the run, or it is reported and the
/// result is false, by run.on_save_error.
bool Trainer::bears_failure(const char* what, std::int64_t step, const std::function<void()>& part) {
  const comm::flight::PhaseScope phase(comm::flight::Phase::save);
  try {
    part();
    return true;
  } catch (const CheckpointError& error) {  // on every rank
    if (p_.config.run.on_save_error == "stop") throw;
    p_.log.warn("no {} after step {}: {}; {} (run.on_save_error)", what, step, error.what(),
                is_stopped_by_signal() ? "the run stops without it" : "the run goes on");
    if (world_.rank() == 0)
      folder_->metric(
          {{"kind", "event"}, {"event", "save_error"}, {"what", what}, {"step", step}, {"message", error.what()}});
    return false;
  }
}

/// Keeps the weights of the evaluation just made, the best so far. False: the earlier ones are kept, because these
/// cannot be written.
bool Trainer::keep_best() {
  return bears_failure("best weights", state_.at.global_step, [&] {
    const auto warning = best_model_.save(run_);
    if (!warning.empty()) p_.log.warn("the best weights are saved, but a power failure may undo it: {}", warning);
  });
}

/// Does a part of a save of a checkpoint, for which the training waits.
void Trainer::hold_for_save(std::int64_t step, const std::function<void()>& part) {
  const auto begin = Clock::now();
  bears_failure("checkpoint", step, part);
  save_held_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A checkpoint is complete.
void Trainer::record_save(const checkpoint::SavedCheckpoint& saved) {
  saved_ = saved.folder;
  if (!saved.warning.empty())
    p_.log.warn("{} is saved, but may be gone after a power failure, so that the older ones are kept: {}", saved.folder,
                saved.warning);
  parent::saved(saved.step);
  comm::flight::note_unsaved(what_is_unsaved(saved.step));
  if (world_.rank() == 0)
    folder_->metric({{"kind", "event"},
                     {"event", "save"},
                     {"step", saved.step},
                     {"held_s", save_held_s_},
                     {"write_s", saved.write_s},
                     {"bytes", saved.bytes}});
  call(&RunCallback::on_save, saved_);
}

/// Completes the checkpoint in flight. @throws CheckpointError, on every rank, when rank 0 could not record the run.
/// Collective.
void Trainer::throw_if_unrecorded() {
  settle_save();
  checkpoint::on_first_rank(world_, [this] {
    if (!folder_->problem().empty()) throw CheckpointError(folder_->problem());
  });
}

/// Says that the run could not be recorded where it ends for another reason. `error`: the message of that reason, or
/// "".
void Trainer::warn_if_unrecorded(const std::string& error) const {
  const auto& problem = folder_->problem();
  if (!problem.empty() && error.find(problem) == std::string::npos)
    p_.log.warn("{}; what came after it is not recorded", problem);
}

/// Removes what killed runs have left of unfinished checkpoints where hosts have storages of their own. RunFolder does
/// it on that of rank 0.
void Trainer::remove_leftovers_elsewhere() {
  if (storage_.leads() && storage_.number() > 0) checkpoint::remove_leftovers(folder_->dir());
}

/// Sets checkpoints of later steps aside where hosts have storages of their own. RunFolder does it on that of rank 0.
void Trainer::set_aside_elsewhere(std::int64_t step) {
  if (storage_.is_shared()) return;
  const auto set_aside = [&] {
    if (storage_.leads() && storage_.number() > 0) checkpoint::set_aside_after(folder_->dir(), step);
  };
  checkpoint::on_every_rank(world_, set_aside, "checkpoints cannot be set aside");
}

/// What is lost if the run ends now; `step`: of the checkpoint that it can go on from.
std::string Trainer::what_is_unsaved(std::int64_t step) const {
  if (saved_.empty()) return "nothing of the run was saved";
  return fmt::format("nothing was saved since step {}, and the run can go on from {}", step, saved_);
}

/// Before a step.
void Trainer::vote() {
  booster_.vote(Vote::unrecorded, !folder_->problem().empty());
  if (!saver_ || saver_->is_idle()) return;
  booster_.vote(Vote::saving, saver_->is_busy());
  booster_.vote(Vote::save_failed, saver_->has_failed());
}

/// After a step: goes on with the checkpoint in flight, once all ranks have ended a part of it.
void Trainer::poll_save() {
  if (!saver_) return;
  const auto lag = Readback::lag(world_.device());
  const bool written = written_.launched(lag), failed = save_failed_.launched(lag);
  if (saver_->is_idle() || !(written || failed)) return;
  const StepClock::Pause pause(clock_);
  std::optional<checkpoint::SavedCheckpoint> saved;
  hold_for_save(saver_->step(), [&] { saved = saver_->advance(failed); });
  await_writers();  // of the next part
  if (saved) record_save(*saved);
}

/// Waits for the checkpoint in flight, if there is one. Collective.
void Trainer::settle_save() {
  if (!saver_ || saver_->is_idle()) return;
  std::optional<checkpoint::SavedCheckpoint> saved;
  hold_for_save(saver_->step(), [&] { saved = saver_->wait(); });
  if (saved) record_save(*saved);
}

}  // namespace trireme::train
