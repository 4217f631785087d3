// The training loop. What else happens in a run is in its callbacks (callback.h), and its end in finish.h.
#include "core/train/session.h"

#include <fmt/format.h>

#include <chrono>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/comm/devices.h"
#include "core/comm/text.h"
#include "core/train/best_weights.h"
#include "core/train/deadline.h"
#include "core/train/export.h"
#include "core/train/finish.h"
#include "core/train/finite_watch.h"
#include "core/train/flop_rate.h"
#include "core/train/header.h"
#include "core/train/metrics_file.h"
#include "core/train/out_of_memory.h"
#include "core/train/pretrained.h"
#include "core/train/progress.h"
#include "core/train/rank_log.h"
#include "core/train/readback.h"
#include "core/train/resume.h"
#include "core/train/run_folder.h"
#include "core/train/tensorboard.h"
#include "core/train/timeline.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// One training run. The members are shared by its steps; run() lists these in order.
class Session {
 public:
  Session(Prepared prepared, comm::World& world, RunFolder& folder, RunOptions options)
      : p_(std::move(prepared)),
        options_(std::move(options)),
        world_(world),
        folder_(folder),
        console_(options_.terminal, world.rank() == 0),
        best_model_(folder.dir(), model_texts(p_)),
        booster_(world, std::move(p_.plugin), booster_options(p_), &p_.log),
        flop_rate_([this] { return model_source(p_).model; }) {
    if (!p_.log.file()) return;
    // Rank 0 has moved an earlier run away, so the file is in this run's folder.
    p_.log.file()->open(fmt::format("{}/{}/rank-{}.log", folder.dir(), kLogs, world.rank()));
    callbacks_.push_back(std::make_shared<RankLog>(p_.log.file()));
  }

  void run() {
    try {
      with_memory_remedy([this] { run_all(); }, [this] { return remedy(); });
    } catch (...) {
      const auto error = std::current_exception();
      for (const auto& callback : callbacks_) {
        try {
          callback->on_exception(error);
        } catch (const std::exception& another) {
          p_.log.warn("a callback's on_exception() failed: {}", another.what());
        }
      }
      throw;
    }
  }

 private:
  void run_all() {
    start();
    while (at().epoch < train().epochs && at().global_step < p_.total_steps && context_.stopped_by.empty()) {
      train_epoch();
      if (at().step_in_epoch == run_.loader->steps_per_epoch()) {
        ++at().epoch;
        at().step_in_epoch = 0;
      }
      save();
    }
    end();
  }

  /// The remedy when memory runs out in training.
  std::string remedy() const {
    if (!run_.model)  // while weights and optimizer state are made
      return ": choose a smaller model, or partition it over more ranks (parallel.tp, parallel.pp, parallel.zero = 3)";
    std::vector<std::string> ways;
    if (p_.micro_batch > 1) ways.push_back(fmt::format("use a train.micro_batch below {}", p_.micro_batch));
    if (!train().recompute) ways.emplace_back("set train.recompute = true");
    for (auto& way : run_.model->report().memory_advice) ways.push_back(std::move(way));
    return ways.empty() ? ": use more ranks" : fmt::format(": {}, or use more ranks", text::join(ways));
  }
  const TrainSection& train() const { return p_.config.train; }
  checkpoint::Progress& at() { return state_.at; }
  /// The epoch in progress or just ended, from 1.
  std::int64_t epoch_number() { return at().step_in_epoch == 0 && at().epoch > 0 ? at().epoch : at().epoch + 1; }

  template <class... Parameters, class... Arguments>
  void call(void (RunCallback::*event)(RunContext&, Parameters...), const Arguments&... arguments) {
    for (const auto& callback : callbacks_) (callback.get()->*event)(context_, arguments...);
  }

  void start() {
    run_ = booster_.boost(training_inputs(p_));
    validation_ = booster_.evaluation_loader(p_.data.validation, p_.eval_batch);
    print_header(console_, p_, booster_, run_, p_.total_steps);
    context_.resumed_from = resume(p_.config, folder_, booster_, run_, state_, best_model_);
    context_.resumed_at = at().global_step;
    peak_ = peak_of_all();
    add_callbacks();
    call(&RunCallback::on_start);
    begin_ = Clock::now();
  }

  /// The peak of all ranks' devices in FLOP/s, if it is known.
  std::optional<double> peak_of_all() const {
    auto peak = p_.config.run.peak_tflops;
    if (!peak && world_.rank() == 0 && world_.device().is_cuda()) {
      peak = peak_tflops(comm::cuda_device_name(world_.device().index()), train().precision);
      if (peak) *peak /= world_.ranks_per_device();
    }
    return peak ? std::optional(*peak * 1e12 * world_.size()) : std::nullopt;
  }

  void add_callbacks() {
    const auto add = [this]<class T>(std::shared_ptr<T> callback) { callbacks_.push_back(std::move(callback)); };
    add(std::make_shared<MetricsFile>(peak_));
    if (p_.config.run.tensorboard) add(std::make_shared<TensorBoard>(folder_.dir() + "/" + kTensorBoard, peak_));
    add(std::make_shared<FiniteWatch>(run_.optimizer->scaler().enabled()));
    add(std::make_shared<ProgressReport>(p_.total_steps, peak_));
    add(std::make_shared<BestWeights>(best_model_));
    if (train().patience) add(std::make_shared<EarlyStop>(*train().patience));
    if (options_.timeline)
      add(std::make_shared<Timeline>(booster_.mesh(), fmt::format("{}/{}", folder_.dir(), kTimelineFile),
                                     p_.total_steps - at().global_step, options_.terminal.columns));
    if (train().max_seconds) add(std::make_shared<TimeLimit>(world_, *train().max_seconds));
    for (const auto& make : p_.config.kinds.callbacks) {
      add(make());
      TRIREME_REQUIRE(callbacks_.back() != nullptr, "a maker of Kinds::callbacks returned null");
    }
    for (const auto& callback : options_.callbacks) add(callback);
  }

  void train_epoch() {
    const auto epoch_begin = Clock::now();
    loss_sum_ = weight_sum_ = 0;
    run_.loader->start_epoch(at().epoch, at().step_in_epoch);
    last_step_ = Clock::now();
    while (auto batch = run_.loader->next()) {
      train_step(*batch);
      if (at().global_step >= p_.total_steps || !context_.stopped_by.empty()) break;
      // The end of an epoch has its own evaluation and checkpoint.
      if (at().step_in_epoch == run_.loader->steps_per_epoch()) break;
      const auto is_due = [this](std::int64_t every) { return every > 0 && at().global_step % every == 0; };
      if (is_due(train().eval_every.value_or(0))) validate(std::nullopt);
      if (!context_.stopped_by.empty()) break;
      if (is_due(p_.config.run.checkpoint_every)) save();
    }
    readback_.drain();
    flop_rate_.add_wait(since(last_step_));
    if (state_.last.step != at().global_step) validate(epoch_begin);  // else the evaluation has stopped the training
  }

  /// Evaluates on the validation split. `epoch_begin`: set at the end of an epoch.
  void validate(std::optional<Clock::time_point> epoch_begin) {
    readback_.drain();
    if (!epoch_begin) flop_rate_.add_wait(since(last_step_));
    const auto averaged = run_.use_average();
    const auto eval = evaluate(booster_, run_, *validation_);
    FiniteWatch::validation(epoch_number(), eval.loss);
    if (epoch_begin)
      validated(eval, Evaluation::Epoch{loss_sum_ / (weight_sum_ > 0 ? weight_sum_ : 1), since(*epoch_begin)});
    else
      validated(eval, std::nullopt);
    last_step_ = Clock::now();
  }

  void train_step(const data::StepBatch& batch) {
    call(&RunCallback::on_step_begin);
    const auto step = booster_.train_step(run_, batch);
    ++at().global_step;
    ++at().step_in_epoch;
    at().samples += batch.global_samples;
    local_samples_ += batch.local_samples;
    const auto flops = world_.rank() == 0 ? flop_rate_.of_step(batch) : std::nullopt;
    const double seconds = since(last_step_);
    last_step_ = Clock::now();
    read_back(step, batch,
              {.at = at(),
               .loss = 0,
               .lr = step.lr,
               .grad_norm = 0,
               .skipped = false,
               .samples = batch.global_samples,
               .seconds = seconds,
               .data_wait = batch.wait_seconds,
               .flops = flops});
    call(&RunCallback::on_step_end, StepEnd{step, batch, seconds});
  }

  /// Completes the step's log when its numbers are on the host, and passes it on.
  void read_back(const TrainStep& step, const data::StepBatch& batch, StepLog log) {
    const auto& divisor = batch.micro.front().global_weight;
    const bool on_host = divisor.is_cpu();
    const double known = on_host ? divisor.item<double>() : 0;
    readback_.add({step.loss, step.result.grad_norm, step.result.found_inf, on_host ? at::Tensor() : divisor},
                  [this, log, on_host, known](const std::vector<double>& values) mutable {
                    log.loss = values[0];
                    log.grad_norm = values[1];
                    log.skipped = values[2] != 0;
                    state_.skipped += log.skipped ? 1 : 0;
                    const double weight = on_host ? known : values[3];
                    loss_sum_ += log.loss * weight;
                    weight_sum_ += weight;
                    if (log.flops) flop_rate_.add(*log.flops, log.seconds);
                    call(&RunCallback::on_log, log);
                  });
  }

  void validated(const EvalResult& eval, std::optional<Evaluation::Epoch> epoch) {
    state_.last = {epoch_number(), at().global_step, {{kLoss, eval.loss}}};
    for (const auto& [metric, value] : eval.metrics) state_.last.values[metric.name] = value;
    call(&RunCallback::on_evaluate,
         Evaluation{.split = "validation", .result = eval, .of = state_.last, .weights = "", .epoch = epoch});
  }

  void save() {
    readback_.drain();
    if (p_.config.run.keep_checkpoints == 0) return;
    const auto checkpoint = save_state(p_, folder_, booster_, run_, state_, best_model_);
    world_.group().barrier();
    call(&RunCallback::on_save, checkpoint);
  }

  void end() {
    const auto averaged = run_.use_average();
    // The run was resumed with nothing left to train, in the middle of an epoch or with another metric.
    if (state_.last.step != at().global_step || !state_.last.values.contains(p_.shown.name) ||
        !state_.last.values.contains(p_.best.name))
      validated(evaluate(booster_, run_, *validation_), std::nullopt);
    if (p_.config.run.peak_tflops && !flop_rate_.problem().empty())
      p_.log.warn("run.peak_tflops has no effect, because the FLOPs of this model cannot be counted ({}); remove it",
                  flop_rate_.problem());
    finish(context_,
           {.best = best_model_,
            .seconds = [this] { return since(begin_); },
            .local_samples = local_samples_,
            .flops_per_s = flop_rate_.mean(),
            .peak_flops = peak_,
            .report = [this](const Evaluation& evaluation) { call(&RunCallback::on_evaluate, evaluation); }},
           [this](const RunResult& result) { call(&RunCallback::on_finish, result); });
  }

  Prepared p_;
  RunOptions options_;
  comm::World& world_;
  RunFolder& folder_;
  Console console_;
  BestModel best_model_;
  Booster booster_;
  Boosted run_;
  std::unique_ptr<data::Loader> validation_;
  Readback readback_;
  FlopRate flop_rate_;
  TrainerState state_;
  Callbacks callbacks_;
  RunContext context_{p_, world_, folder_, console_, booster_, run_, state_};
  std::optional<double> peak_;
  std::int64_t local_samples_ = 0;
  double loss_sum_ = 0, weight_sum_ = 0;  ///< of this epoch's steps
  Clock::time_point begin_, last_step_;
};

}  // namespace

void run_training(Prepared prepared, comm::World& world, RunFolder& folder, RunOptions options) {
  if (const auto done = comm::broadcast_text(world.group(), world.device(), folder.resume_point().done); !done.empty())
    return Console(options.terminal, world.rank() == 0).line(done);
  Session(std::move(prepared), world, folder, std::move(options)).run();
}

}  // namespace trireme::train
