#include "core/train/session.h"

#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/checkpoint/weights.h"
#include "core/comm/text.h"
#include "core/train/deadline.h"
#include "core/train/export.h"
#include "core/train/finite_watch.h"
#include "core/train/header.h"
#include "core/train/out_of_memory.h"
#include "core/train/pretrained.h"
#include "core/train/readback.h"
#include "core/train/resume.h"
#include "core/train/run_folder.h"
#include "core/train/summary.h"
#include "core/train/timeline.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// One training run. The members are shared by its steps; run() lists these in order.
class Session {
 public:
  Session(Prepared prepared, comm::World& world, RunFolder& folder, Terminal terminal, bool timeline)
      : p_(std::move(prepared)),
        terminal_(terminal),
        wants_timeline_(timeline),
        world_(world),
        folder_(folder),
        console_(terminal, world.rank() == 0),
        best_model_(folder.dir(), model_texts(p_)),
        booster_(world, std::move(p_.plugin), booster_options(p_)),
        deadline_(world, Deadline::lag_on(world.device())) {}

  void run() {
    if (const auto done = comm::broadcast_text(world_.group(), world_.device(), folder_.resume_point().done);
        !done.empty())
      return console_.line(done);
    with_memory_remedy([this] { run_all(); }, [this] { return remedy(); });
  }

 private:
  void run_all() {
    start();
    while (at().epoch < train().epochs && at().global_step < total_steps_ && !stopped_) {
      train_epoch();
      if (at().step_in_epoch == run_.loader->steps_per_epoch()) {
        ++at().epoch;
        at().step_in_epoch = 0;
      }
      save();
    }
    finish();
  }

  /// The remedy when memory runs out in training.
  std::string remedy() const {
    if (!run_.model)  // while weights and optimizer state are made
      return ": choose a smaller model, or partition it over more ranks (parallel.tp, parallel.pp, parallel.zero = 3)";
    std::vector<std::string> ways;
    if (p_.micro_batch > 1) ways.push_back(fmt::format("use a train.micro_batch below {}", p_.micro_batch));
    if (!train().recompute) ways.emplace_back("set train.recompute = true");
    for (auto& way : run_.model->memory_advice()) ways.push_back(std::move(way));
    return ways.empty() ? ": use more ranks" : fmt::format(": {}, or use more ranks", text::join(ways));
  }
  const TrainSection& train() const { return p_.config.train; }
  checkpoint::Progress& at() { return state_.at; }
  /// The epoch in progress or just ended, from 1.
  std::int64_t epoch_number() { return at().step_in_epoch == 0 && at().epoch > 0 ? at().epoch : at().epoch + 1; }

  void start() {
    total_steps_ = p_.total_steps;
    run_ = booster_.boost(training_inputs(p_));
    watch_.emplace(run_.optimizer->scaler().enabled());
    validation_ = booster_.evaluation_loader(p_.data.validation, p_.eval_batch);
    print_header(console_, p_, booster_, run_, total_steps_);
    if (const auto from = resume(p_.config, folder_, booster_, run_, state_, best_model_); !from.empty()) {
      console_.line(at().global_step < total_steps_
                        ? fmt::format("resume    from {}: epoch {}, step {}", from, at().epoch + 1, at().global_step)
                        : fmt::format("resume    from {}: all {} done; evaluation and export are left", from,
                                      text::counted(at().global_step, "step")));
      folder_.metric({{"kind", "event"}, {"event", "resume"}, {"from", from}, {"step", at().global_step}});
    }
    for (const auto& note : folder_.resume_point().notes) console_.line(note);
    resumed_at_ = at().global_step;
    if (wants_timeline_) {
      constexpr std::int64_t kWarmUp = 2, kSteps = 3;
      const auto steps = std::max<std::int64_t>(1, total_steps_ - resumed_at_), traced = std::min(kSteps, steps);
      timeline_.emplace(booster_.mesh(), fmt::format("{}/{}", folder_.dir(), kTimelineFile),
                        std::min(kWarmUp, steps - traced), traced);
    }
    begin_ = Clock::now();
  }

  void show_timeline() {
    auto picture = run_.model->picture(terminal_.columns > 0 ? terminal_.columns : 120);
    if (!picture.empty()) console_.line("the last of the traced steps:\n" + picture.erase(picture.size() - 1));
    console_.line(fmt::format("timeline  {} (for ui.perfetto.dev or chrome://tracing)", timeline_->path()));
  }

  void train_epoch() {
    const auto epoch_begin = Clock::now();
    double loss_sum = 0, weight_sum = 0;
    run_.loader->start_epoch(at().epoch, at().step_in_epoch);
    auto last = Clock::now();
    while (auto batch = run_.loader->next()) {
      if (timeline_) timeline_->begin(at().global_step - resumed_at_);
      const auto step = booster_.train_step(run_, *batch);
      if (timeline_ && timeline_->end(at().global_step - resumed_at_)) show_timeline();
      ++at().global_step;
      ++at().step_in_epoch;
      at().samples += batch->global_samples;
      local_samples_ += batch->local_samples;
      waited_ += batch->wait_seconds;
      const double seconds = since(last);
      last = Clock::now();
      read_back(step, *batch, seconds, [&loss_sum, &weight_sum](double loss, double weight) {
        loss_sum += loss * weight;
        weight_sum += weight;
      });
      stopped_ = should_stop();
      if (stopped_) break;
      // The end of an epoch saves its own checkpoint, after the evaluation.
      const auto every = p_.config.run.checkpoint_every, here = at().step_in_epoch;
      if (every > 0 && at().global_step % every == 0 && here < run_.loader->steps_per_epoch()) save();
    }
    readback_.drain();
    const auto eval = score(*validation_);
    FiniteWatch::validation(epoch_number(), eval.loss);
    const double train_loss = loss_sum / (weight_sum > 0 ? weight_sum : 1), seconds = since(epoch_begin);
    auto line = fmt::format("epoch {:<3} train {:.4f}   validation {:.4f}", epoch_number(), train_loss, eval.loss);
    if (p_.shown.name != kLoss)
      line += fmt::format("   {} {}", p_.shown.label, metric_text(p_.shown, eval.value(p_.shown.name)));
    console_.line(fmt::format("{}   {:.1f} s", line, seconds));
    keep(eval, {{"train_loss", train_loss}, {"epoch_seconds", seconds}});
  }

  EvalResult score(data::Loader& loader) { return evaluate(booster_, run_, loader); }

  void keep(const EvalResult& eval, nlohmann::json line) {
    state_.last = {epoch_number(), at().global_step, {{kLoss, eval.loss}}};
    for (const auto& [metric, value] : eval.metrics) state_.last.values[metric.name] = value;
    record("validation", eval, state_.last, std::move(line));
    // Of equally good epochs the first is kept.
    if (!state_.last.better_than(state_.best, p_.best)) return;
    state_.best = state_.last;
    best_model_.save(booster_, run_);
  }

  /// Reports a step when its numbers are on the host, and stops the run when they are not finite.
  void read_back(const TrainStep& step, const data::StepBatch& batch, double seconds,
                 std::function<void(double, double)> count) {
    // The first step is warm-up; after it, a moving average over about ten steps.
    seconds_a_step_ = seconds_a_step_ == 0 || at().step_in_epoch <= 2 ? seconds : 0.9 * seconds_a_step_ + 0.1 * seconds;
    const auto here = at();
    const double wait = batch.wait_seconds, n = static_cast<double>(batch.global_samples);
    const auto& divisor = batch.micro.front().global_weight;
    const bool on_host = divisor.is_cpu();
    const double known = on_host ? divisor.item<double>() : 0;
    readback_.add({step.loss, step.result.grad_norm, step.result.found_inf, on_host ? at::Tensor() : divisor},
                  [=, this, lr = step.lr](const std::vector<double>& v) {
                    const double loss = v[0], norm = v[1];
                    const bool skipped = v[2] != 0;
                    state_.skipped += skipped ? 1 : 0;
                    count(loss, on_host ? known : v[3]);
                    nlohmann::json line{{"kind", "step"},
                                        {"step", here.global_step},
                                        {"epoch", here.epoch + 1},
                                        {"loss", loss},
                                        {"lr", lr},
                                        {"grad_norm", norm},
                                        {"samples", static_cast<std::int64_t>(n)},
                                        {"samples_per_s", n / seconds},
                                        {"data_wait", wait}};
                    if (run_.optimizer->scaler().enabled()) line["skipped"] = skipped;
                    folder_.metric(std::move(line));
                    watch_->step(here.global_step, loss, norm, skipped);
                    console_.progress({.epoch = here.epoch + 1,
                                       .epochs = train().epochs,
                                       .step = here.step_in_epoch,
                                       .steps = run_.loader->steps_per_epoch(),
                                       .total_left = total_steps_ - here.global_step,
                                       .loss = loss,
                                       .lr = lr,
                                       .grad_norm = norm,
                                       .samples_per_s = n / seconds_a_step_,
                                       .data_wait = waited_ / std::max(1e-9, since(begin_)),
                                       .skipped = state_.skipped},
                                      seconds_a_step_);
                  });
  }

  bool should_stop() {
    if (at().global_step >= total_steps_) return true;
    return train().max_seconds && deadline_.passed(since(begin_) >= *train().max_seconds);
  }

  void save() {
    readback_.drain();
    if (p_.config.run.keep_checkpoints == 0) return;
    save_state(p_, folder_, booster_, run_, state_, best_model_);
    world_.group().barrier();
  }

  /// `of`: gives the step and epoch of the evaluated weights.
  void record(const char* split, const EvalResult& eval, const Evaluated& of, nlohmann::json line) {
    line.update({{"kind", "eval"},
                 {"split", split},
                 {"step", of.step},
                 {"epoch", of.epoch},
                 {"samples", eval.samples},
                 {"seconds", eval.seconds}});
    line.update(to_json(eval));
    folder_.metric(std::move(line));
  }

  void finish() {
    // The run was resumed with nothing left to train, in the middle of an epoch or with another metric.
    if (state_.last.step != at().global_step || !state_.last.values.contains(p_.shown.name) ||
        !state_.last.values.contains(p_.best.name))
      keep(score(*validation_), nlohmann::json::object());
    // Save before the test, so that an error in the test samples does not lose the training.
    const auto model = fmt::format("{}/{}", folder_.dir(), kExportedModel);
    const bool exports_best = p_.config.run.export_weights == "best";
    if (exports_best)
      best_model_.export_to(model);
    else
      checkpoint::save_weights(model, run_.model->state_dict(), model_texts(p_), booster_.mesh());
    RunResult result{.state = state_,
                     .run_dir = folder_.dir(),
                     .shown = p_.shown,
                     .resumed_at = resumed_at_,
                     .exports_best = exports_best};
    if (p_.data.test) {
      try {
        score_test(result);
      } catch (const DataError& error) {
        const bool resumes = p_.config.run.keep_checkpoints > 0;
        throw DataError(
            fmt::format("{}. The training is complete, and its weights are in {}/{}{}", error.what(), folder_.dir(),
                        kExportedModel, resumes ? "; with --resume auto only the test runs" : ""),
            error.where());
      }
    }
    if (at().epoch < train().epochs)
      result.stopped_by = at().global_step >= total_steps_ ? "train.max_steps" : "train.max_seconds";
    result.seconds = since(begin_);
    result.skipped_samples = skipped_samples(p_.data, world_);
    const auto reports =
        comm::gather_text(world_.group(), world_.device(), rank_report(run_, world_, local_samples_).dump());
    folder_.summary(run_summary(result, booster_, reports));
    for (const auto& line : closing_lines(result)) console_.line(line);
  }

  /// Evaluates the exported weights on the test split: the last ones, and the best ones if they differ.
  void score_test(RunResult& result) {
    const auto loader = booster_.evaluation_loader(p_.data.test, p_.eval_batch);
    result.test = score(*loader);
    record("test", *result.test, state_.last, {{"weights", "last"}});
    if (result.best_is_last() || !best_model_.load(booster_, run_)) return;
    result.best_test = score(*loader);
    record("test", *result.best_test, state_.best, {{"weights", "best"}});
  }

  Prepared p_;
  Terminal terminal_;
  bool wants_timeline_;
  comm::World& world_;
  RunFolder& folder_;
  Console console_;
  BestModel best_model_;
  Booster booster_;
  Boosted run_;
  std::unique_ptr<data::Loader> validation_;
  Readback readback_;
  Deadline deadline_;
  std::optional<FiniteWatch> watch_;
  std::optional<Timeline> timeline_;
  TrainerState state_;
  std::int64_t total_steps_ = 0, local_samples_ = 0, resumed_at_ = 0;
  double waited_ = 0, seconds_a_step_ = 0;
  bool stopped_ = false;
  Clock::time_point begin_;
};

}  // namespace

void run_training(Prepared prepared, comm::World& world, RunFolder& folder, Terminal terminal, bool timeline) {
  Session(std::move(prepared), world, folder, terminal, timeline).run();
}

}  // namespace trireme::train
