// What a Trainer does about steps with bad numbers (bad_numbers.h): it ends with a report, or returns to a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/flight/stopping.h"
#include "core/train/bad_report.h"
#include "core/train/trainer.h"

namespace trireme::train {

/// Passes the numbers of a step on to numbers_.
void Trainer::judge(const StepLog& log) {
  const auto line = numbers_.see(log, run_.optimizer->scaler().enabled());
  if (!line.empty()) context_.say(line);
}

/// Acts on a bad step, if one is due; see BadNumbers::due(). @throws NonFiniteError, ReturnToCheckpoint
void Trainer::act_on_numbers(bool all_are_read) {
  const auto bad = numbers_.due(all_are_read ? 0 : Readback::lag(world_.device()));
  if (!bad) return;
  settle_save();  // it is the newest to return to, or the one that the run goes on from when it is started again
  std::string obstacle;
  if (bad->act == BadStep::Act::rollback) {
    const auto from = newest_checkpoint(world_, run_, needs_best(p_), folder_->dir(), p_.log);
    if (from.folder.empty())
      obstacle = "; the run has no checkpoint to return to";
    else if (!numbers_.may_return(checkpoint::step_of_folder(from.folder)))
      obstacle = fmt::format("; the run has returned to {} {} times without getting further (train.max_nonfinite)",
                             from.folder, p_.config.train.max_nonfinite);
    else
      throw ReturnToCheckpoint{from, *bad};
  }
  if (bad->spike) throw NonFiniteError(fmt::format("{}{}. {}", bad->what, obstacle, bad->remedy));
  const auto steps = run_.loader->steps_per_epoch();
  const auto report = find_bad_tensor(run_, (bad->step - 1) / steps, (bad->step - 1) % steps);
  throw NonFiniteError(fmt::format("{}{}. {}. {}", bad->what, obstacle, report.text,
                                   report.remedy.empty() ? bad->remedy : report.remedy));
}

/// Compares the ranks' copies of the weights after each run.compare_replicas_every steps.
void Trainer::compare_replicas() {
  if (!is_due(p_.config.run.compare_replicas_every) || world_.size() == 1) return;
  if (!replicas_) replicas_.emplace(run_);
  replicas_->compare(state_.at.global_step);
}

/// Restores the run from a checkpoint, from which it goes on without the batches of the bad steps. Collective.
void Trainer::return_to(const ReturnToCheckpoint& back) {
  const auto& [from, bad] = back;
  readback_.drain();                  // steps after the bad one, which do not count
  const auto known = state_.numbers;  // more than the checkpoint knows
  const bool is_evaluated = restore_run(p_, run_, state_, best_model_, from);
  numbers_.go_back(known, bad.steps);
  const auto step = state_.at.global_step;
  saved_step_ = step;
  saved_ = from.folder;
  comm::flight::note_unsaved(what_is_unsaved(step));
  std::vector<std::string> notes;
  checkpoint::on_first_rank(world_, [&] { notes = folder_->go_back(step, is_evaluated); });
  set_aside_elsewhere(step);
  const auto list = fmt::format("{}", fmt::join(bad.steps, ", "));
  context_.say(fmt::format("rollback  {}; back to step {}, and without the {} of {} {}", bad.what, step,
                           bad.steps.size() == 1 ? "batch" : "batches", bad.steps.size() == 1 ? "step" : "steps",
                           list));
  for (const auto& note : notes) context_.say(note);
  folder_->metric({{"kind", "event"},
                   {"event", "rollback"},
                   {"step", step},
                   {"from", from.folder},
                   {"left_out", bad.steps},
                   {"cause", bad.what}});
}

/// Counts a step whose batch is left out; nothing is trained.
void Trainer::pass_over() {
  ++run_.step;
  ++state_.at.global_step;
  ++state_.at.step_in_epoch;
  clock_.start();
  folder_->metric({{"kind", "event"}, {"event", "left_out"}, {"step", state_.at.global_step}});
}

}  // namespace trireme::train
