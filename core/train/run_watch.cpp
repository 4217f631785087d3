#include "core/train/run_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/checkpoint/checkpoint_folders.h"
#include "core/checkpoint/shared_errors.h"
#include "core/resume/resume.h"
#include "core/resume/run_folder.h"
#include "core/train/readback.h"
#include "core/train/report/bad_report.h"

namespace trireme::train {

void RunWatch::see(const StepLog& log) {
  const auto line = numbers_.see(log, run_.boosted.optimizer->scaler().enabled());
  if (!line.empty()) run_.say(line);
}

void RunWatch::act(bool all_are_read) {
  const auto bad = numbers_.due(all_are_read ? 0 : Readback::lag(run_.world.device()));
  if (!bad) return;
  saves_.settle();  // it is the newest to return to, or the one that the run goes on from when it is started again
  const auto& setup = run_.setup;
  std::string obstacle;
  if (bad->act == BadStep::Act::rollback) {
    const auto from = newest_checkpoint(run_.world, run_.boosted, needs_best(setup), run_.folder->dir(), setup.log);
    if (from.folder.empty())
      obstacle = "; the run has no checkpoint to return to";
    else if (!numbers_.may_return(checkpoint::step_of_folder(from.folder)))
      obstacle = fmt::format("; the run has returned to {} {} times without getting further (train.max_nonfinite)",
                             from.folder, setup.config.train.max_nonfinite);
    else
      throw ReturnToCheckpoint{from, *bad};
  }
  if (bad->spike) throw NonFiniteError(fmt::format("{}{}. {}", bad->what, obstacle, bad->remedy));
  const auto steps = run_.boosted.loader->steps_per_epoch();
  const auto report = find_bad_tensor(run_.boosted, (bad->step - 1) / steps, (bad->step - 1) % steps);
  throw NonFiniteError(fmt::format("{}{}. {}. {}", bad->what, obstacle, report.text,
                                   report.remedy.empty() ? bad->remedy : report.remedy));
}

void RunWatch::compare_replicas() {
  if (!run_.is_due(run_.setup.config.run.compare_replicas_every) || run_.world.size() == 1) return;
  if (!replicas_) replicas_.emplace(run_.boosted);
  replicas_->compare(run_.state.at.global_step);
}

void RunWatch::return_to(const ReturnToCheckpoint& back) {
  const auto& [from, bad] = back;
  const auto known = run_.state.numbers;  // more than the checkpoint knows
  const bool is_evaluated = restore_run(run_.setup, run_.boosted, run_.state, *run_.best, from);
  numbers_.go_back(known, bad.steps);
  const auto step = run_.state.at.global_step;
  std::vector<std::string> notes;
  checkpoint::on_first_rank(run_.world, [&] { notes = run_.folder->go_back(step, is_evaluated); });
  saves_.return_to(from.folder);
  const auto list = fmt::format("{}", fmt::join(bad.steps, ", "));
  run_.say(fmt::format("rollback  {}; back to step {}, and without the {} of {} {}", bad.what, step,
                       bad.steps.size() == 1 ? "batch" : "batches", bad.steps.size() == 1 ? "step" : "steps", list));
  for (const auto& note : notes) run_.say(note);
  run_.folder->metric({{"kind", "event"},
                       {"event", "rollback"},
                       {"step", step},
                       {"from", from.folder},
                       {"left_out", bad.steps},
                       {"lost_s", run_.folder->dropped().seconds},
                       {"cause", bad.what}});
}

}  // namespace trireme::train
