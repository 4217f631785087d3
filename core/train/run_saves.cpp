#include "core/train/run_saves.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/booster/run_state.h"
#include "core/checkpoint/checkpoint_folders.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/comm/host_values.h"
#include "core/launch/parent.h"
#include "core/resume/export.h"
#include "core/resume/resume.h"
#include "core/resume/run_folder.h"
#include "core/train/readback.h"

namespace trireme::train {

using Clock = std::chrono::steady_clock;

void RunSaves::start() {
  if (run_.setup.config.run.keep_checkpoints > 0) storage_ = checkpoint::find_storage(run_.folder->dir(), run_.world);
  // RunFolder does it on the storage of rank 0.
  if (storage_.leads() && storage_.number() > 0) checkpoint::remove_leftovers(run_.folder->dir());
}

void RunSaves::go_on_from(const std::string& checkpoint) {
  newest_ = checkpoint;
  const auto step = run_.state.at.global_step;
  set_aside_elsewhere(has_own() ? step : -1);
  comm::flight::note_unsaved(what_is_unsaved(step));
}

void RunSaves::return_to(const std::string& checkpoint) {
  saved_step_ = run_.state.at.global_step;
  go_on_from(checkpoint);
}

void RunSaves::reserve() {
  const auto& run = run_.setup.config.run;
  if (!run.async_save || run.keep_checkpoints == 0 || run_.is_over()) return;
  saver_.emplace(run_.booster.mesh(), storage_);
  saver_->reserve(contents_of(run_.boosted));
  run_.staging_bytes = comm::reduce_value(run_.world.group(), saver_->capacity(), comm::ReduceOp::max);
}

void RunSaves::save() {
  const auto step = run_.state.at.global_step;
  const auto keep = run_.setup.config.run.keep_checkpoints;
  if (keep == 0 || std::exchange(saved_step_, step) == step) return;
  throw_if_unrecorded();  // a run that goes on from this step would lack the lines before it
  hold(step, [&]() -> std::optional<checkpoint::SavedCheckpoint> {
    held_s_ = 0;
    auto contents = checkpoint_of(run_.setup, *run_.folder, run_.boosted, run_.state, *run_.best);
    const auto dir = run_.folder->dir();
    if (!saver_ || run_.is_over())  // the end of the training has to wait for it anyway
      return checkpoint::CheckpointSave(dir, std::move(contents), keep, run_.booster.mesh(), storage_).run();
    saver_->begin(dir, std::move(contents), keep);
    return std::nullopt;
  });
  await_writers();
}

/// Does a part of a save of a checkpoint, for which the training waits, and records the checkpoint that it completes.
void RunSaves::hold(std::int64_t step, const std::function<std::optional<checkpoint::SavedCheckpoint>()>& part) {
  std::optional<checkpoint::SavedCheckpoint> saved;
  const auto begin = Clock::now();
  bears_failure("checkpoint", step, [&] { saved = part(); });
  held_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
  if (saved) record(*saved);
}

/// Does a part of a save, of a checkpoint or of the best weights. An error ends the run, or it is reported and the
/// result is false, by run.on_save_error.
bool RunSaves::bears_failure(const char* what, std::int64_t step, const std::function<void()>& part) {
  const comm::flight::PhaseScope phase(comm::flight::Phase::save);
  try {
    part();
    return true;
  } catch (const CheckpointError& error) {  // on every rank
    const auto& setup = run_.setup;
    if (setup.config.run.on_save_error == "stop") throw;
    setup.log.warn("no {} after step {}: {}; {} (run.on_save_error)", what, step, error.what(),
                   run_.is_stopped_by_signal() ? "the run stops without it" : "the run goes on");
    run_.folder->metric(
        {{"kind", "event"}, {"event", "save_error"}, {"what", what}, {"step", step}, {"message", error.what()}});
    return false;
  }
}

/// From the next step on the votes tell when this part of a background save has ended on all ranks.
void RunSaves::await_writers() {
  written_.begin();
  failed_.begin();
}

bool RunSaves::keep_best() {
  return bears_failure("best weights", run_.state.at.global_step, [&] {
    const auto warning = run_.best->save(run_.boosted);
    if (!warning.empty())
      run_.setup.log.warn("the best weights are saved, but a power failure may undo it: {}", warning);
  });
}

/// A checkpoint is complete.
void RunSaves::record(const checkpoint::SavedCheckpoint& saved) {
  newest_ = saved.folder;
  if (!saved.warning.empty())
    run_.setup.log.warn("{} is saved, but may be gone after a power failure, so that the older ones are kept: {}",
                        saved.folder, saved.warning);
  parent::saved(saved.step);
  comm::flight::note_unsaved(what_is_unsaved(saved.step));
  run_.folder->metric({{"kind", "event"},
                       {"event", "save"},
                       {"step", saved.step},
                       {"held_s", held_s_},
                       {"write_s", saved.write_s},
                       {"bytes", saved.bytes}});
  run_.call(&RunCallback::on_save, newest_);
}

/// Completes the checkpoint in flight. @throws CheckpointError, on every rank, when rank 0 could not record the run.
void RunSaves::throw_if_unrecorded() {
  settle();
  checkpoint::on_first_rank(run_.world, [this] {
    if (const auto& problem = run_.folder->problem(); !problem.empty()) throw CheckpointError(problem);
  });
}

void RunSaves::warn_if_unrecorded(const std::string& error) const {
  const auto& problem = run_.folder->problem();
  if (!problem.empty() && error.find(problem) == std::string::npos)
    run_.setup.log.warn("{}; what came after it is not recorded", problem);
}

/// Sets checkpoints of later steps aside where hosts have storages of their own. RunFolder does it on that of rank 0.
void RunSaves::set_aside_elsewhere(std::int64_t step) {
  if (storage_.is_shared()) return;
  const auto set_aside = [&] {
    if (storage_.leads() && storage_.number() > 0) checkpoint::set_aside_after(run_.folder->dir(), step);
  };
  checkpoint::on_every_rank(run_.world, set_aside, "checkpoints cannot be set aside");
}

/// What is lost if the run ends now; `step`: of the checkpoint that it can go on from.
std::string RunSaves::what_is_unsaved(std::int64_t step) const {
  if (newest_.empty()) return "nothing of the run was saved";
  return fmt::format("nothing was saved since step {}, and the run can go on from {}", step, newest_);
}

std::string RunSaves::what_is_saved() const {
  if (run_.setup.config.run.keep_checkpoints == 0) return "; nothing is saved (run.keep_checkpoints = 0)";
  if (newest_.empty()) return ", which could not be saved; there is no earlier checkpoint";
  if (const auto step = checkpoint::step_of_folder(newest_); step != run_.state.at.global_step)
    return fmt::format(", which could not be saved; the newest checkpoint is that of step {}, {}", step, newest_);
  return fmt::format(", saved in {}", newest_);
}

bool RunSaves::has_own() const { return is_checkpoint_of(run_.folder->dir(), newest_); }

void RunSaves::vote() const {
  run_.booster.vote(Vote::unrecorded, !run_.folder->problem().empty());
  if (!saver_ || saver_->is_idle()) return;
  run_.booster.vote(Vote::saving, saver_->is_busy());
  run_.booster.vote(Vote::save_failed, saver_->has_failed());
}

void RunSaves::read(const VoteCounts& votes) {
  unrecorded_.read(votes.any(Vote::unrecorded));
  written_.read(!votes.any(Vote::saving));
  failed_.read(votes.any(Vote::save_failed));
}

void RunSaves::after_step() {
  const auto lag = Readback::lag(run_.world.device());
  const bool unrecorded = unrecorded_.launched(lag), written = written_.launched(lag), failed = failed_.launched(lag);
  if (unrecorded) throw_if_unrecorded();
  if (!saver_ || saver_->is_idle() || !(written || failed)) return;
  const auto pause = clock_.pause();
  hold(saver_->step(), [&] { return saver_->advance(failed); });
  await_writers();  // of the next part
}

void RunSaves::settle() {
  if (!saver_ || saver_->is_idle()) return;
  hold(saver_->step(), [&] { return saver_->wait(); });
}

void RunSaves::cancel() {
  if (saver_) saver_->cancel();
}

void RunSaves::abandon() {
  if (saver_) saver_->abandon();
}

}  // namespace trireme::train
