#include "core/data/loader.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/ParallelGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/data/batch_maker.h"
#include "core/data/sampler.h"

namespace trireme::data {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

struct Loader::State {
  /// One step in progress: workers claim and read its samples; the last one to finish assembles the batches.
  struct Job {
    std::int64_t epoch = 0, step = 0;
    StepPlan plan;
    ExchangePlan exchange;      ///< with LoaderOptions::exchange
    StepSamples samples;        ///< those that this rank reads: its share, and for combining the one after it
    std::size_t reads = 0;      ///< the number of them
    std::vector<RawBatch> raw;  ///< its share, read
    std::size_t claimed = 0, finished = 0;  ///< guarded by the loader's mutex, like the members below
    std::exception_ptr error;
    std::size_t error_at = 0;
    bool ready = false;
    StepBatch batch;
  };

  State(std::shared_ptr<Dataset> set, LoaderOptions opts)
      : dataset(std::move(set)),
        options(std::move(opts)),
        sampler(sampler_options(*dataset, options)),
        maker(dataset, options) {}

  void plan_reads(Job& job);
  void work(std::size_t worker);
  void read_one(Job& job, std::size_t at);
  void collect(Job& job);
  void exchange(Job& job);
  void finish(Job& job);
  void schedule(std::size_t jobs);
  void stop();

  std::shared_ptr<Dataset> dataset;
  LoaderOptions options;
  Sampler sampler;
  BatchMaker maker;

  std::mutex mutex;
  std::condition_variable work_waits, step_ready;
  std::deque<std::shared_ptr<Job>> jobs;  ///< in step order; the front is what next() returns
  bool stopping = false;
  struct Work {
    std::int64_t samples = 0;
    double seconds = 0;
  };
  std::vector<Work> work_done;  ///< by worker

  bool started = false;
  std::int64_t epoch = 0, scheduled = 0;  ///< `scheduled`: the step that schedule() creates next
  std::vector<std::int64_t> order;
  std::vector<std::thread> workers;
};

Loader::Loader(std::shared_ptr<Dataset> dataset, LoaderOptions options) {
  check_loader(*dataset, options);
  state_ = std::make_unique<State>(std::move(dataset), options);
  try {
    const auto workers = static_cast<std::size_t>(std::max<std::int64_t>(1, options.workers));
    state_->work_done.resize(workers);
    for (std::size_t i = 0; i < workers; ++i)
      state_->workers.emplace_back([state = state_.get(), i] { state->work(i); });
  } catch (...) {
    state_->stop();
    throw;
  }
}

Loader::~Loader() { state_->stop(); }

void Loader::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  work_waits.notify_all();
  for (auto& worker : workers) worker.join();
}

std::int64_t Loader::size() const { return state_->dataset->size(); }
std::int64_t Loader::steps_per_epoch() const { return state_->sampler.steps_per_epoch(); }
std::int64_t Loader::micro_per_step() const { return state_->sampler.micro_per_step(state_->options.global_batch); }
const LoaderOptions& Loader::options() const { return state_->options; }

std::vector<double> Loader::worker_rates() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<double> rates;
  for (const auto& [samples, seconds] : state_->work_done)
    rates.push_back(seconds > 0 ? static_cast<double>(samples) / seconds : 0);
  return rates;
}

void Loader::start_epoch(std::int64_t epoch, std::int64_t first_step) {
  auto& s = *state_;
  TRIREME_REQUIRE(epoch >= 0 && first_step >= 0 && first_step <= steps_per_epoch(),
                  "Loader::start_epoch({}, {}): epochs count from 0, and this one has {} steps", epoch, first_step,
                  steps_per_epoch());
  s.order =
      epoch_order(*s.dataset, s.options.shuffle ? std::optional(Shuffle{s.options.seed, epoch, s.options.global_batch})
                                                : std::nullopt);
  s.started = true;
  s.epoch = epoch;
  s.scheduled = first_step;
  {
    // Workers that still read for an earlier step finish their sample in a job that is no longer used.
    const std::lock_guard lock(s.mutex);
    s.jobs.clear();
  }
  s.schedule(static_cast<std::size_t>(std::max<std::int64_t>(0, s.options.prefetch)));
}

/// Decides which samples this rank reads for the step.
void Loader::State::plan_reads(Job& job) {
  std::vector<std::int64_t> ids;
  const auto& [begin, end] = job.plan.share;
  const bool combines = maker.combines() && begin < end;
  const bool repeat_first = combines && job.plan.after == begin;
  if (options.exchange) {
    job.exchange = options.exchange->plan(sampler, job.step, order, maker.combines());
    ids = job.exchange.reads;
  } else {
    for (auto at = begin; at < end; ++at) ids.push_back(at);
    if (combines && !repeat_first) ids.push_back(job.plan.after);
  }
  for (auto& id : ids) id = order[static_cast<std::size_t>(id)];
  job.reads = ids.size();
  job.samples = maker.start(std::move(ids), repeat_first && !options.exchange);
}

/// Fills the queue to `wanted` steps, or to the end of the epoch.
void Loader::State::schedule(std::size_t wanted) {
  const memory::OfHost on_host;
  while (jobs.size() < wanted && scheduled < sampler.steps_per_epoch()) {
    auto job = std::make_shared<Job>();
    job->epoch = epoch;
    job->step = scheduled++;
    job->plan = sampler.step(job->step);
    plan_reads(*job);
    if (job->reads == 0) {
      collect(*job);
      job->ready = true;
    }
    {
      const std::lock_guard lock(mutex);
      jobs.push_back(std::move(job));
    }
    work_waits.notify_all();
  }
}

void Loader::State::work(std::size_t worker) {
  // Ranks and workers share the cores, so code that a worker calls must not start its own threads.
  const c10::ParallelGuard serial(true);
  const memory::OfHost on_host;
  std::unique_lock lock(mutex);
  const auto first_open = [&]() -> std::shared_ptr<Job> {
    for (const auto& job : jobs)
      if (job->claimed < job->reads) return job;
    return nullptr;
  };
  while (true) {
    std::shared_ptr<Job> job;
    work_waits.wait(lock, [&] { return stopping || (job = first_open()) != nullptr; });
    if (stopping) return;
    const auto at = job->claimed++;
    std::exception_ptr error;
    lock.unlock();
    const auto begin = Clock::now();
    try {
      read_one(*job, at);
    } catch (...) {
      error = std::current_exception();
    }
    const auto seconds = since(begin);
    lock.lock();
    ++work_done[worker].samples;
    work_done[worker].seconds += seconds;
    if (error && (!job->error || at < job->error_at)) {
      job->error = error;
      job->error_at = at;
    }
    if (++job->finished < job->reads) continue;
    if (!job->error) {
      lock.unlock();
      try {
        collect(*job);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      job->error = error;
    }
    job->ready = true;
    step_ready.notify_all();
  }
}

void Loader::State::read_one(Job& job, std::size_t at) {
  auto id = job.samples.ids[at];
  const auto n = dataset->size();
  for (std::int64_t attempt = 0; attempt < n; ++attempt, id = (id + 1) % n) {
    const bool readable = maker.read(job.samples, at, id, job.epoch);
    if (!readable && options.exchange && !options.skips)  // the other ranks take it for the sample of their plan
      throw UsageError(fmt::format("the data set skips sample {}, but the option on_bad_sample is not \"skip\"", id));
    if (readable || options.evaluation) return;
  }
  throw DataError(fmt::format("none of the {} samples of the data set can be read", n));
}

/// What a worker can do when all samples of the step are read.
void Loader::State::collect(Job& job) {
  maker.upload(job.samples);
  if (options.exchange) return;
  job.raw = maker.collect(std::move(job.samples), job.plan.micro);
  if (options.device.is_cpu()) finish(job);
}

void Loader::State::exchange(Job& job) {
  const memory::OfHost on_host;
  job.samples.copies.wait();
  const auto& layout = *maker.layout();
  StepSamples share{.rows = options.exchange->exchange(job.exchange, job.samples.rows, layout.first_bytes())};
  if (options.skips) {  // only then the readers may have replaced samples
    const auto ids = RowLayout::ids(share.rows).cpu().contiguous();
    share.ids.assign(ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel());
  } else {
    share.ids.assign(order.begin() + job.plan.share.begin, order.begin() + job.plan.share.end);
  }
  job.raw = maker.collect(std::move(share), job.plan.micro);
  finish(job);
}

void Loader::State::finish(Job& job) {
  auto& step = job.batch;
  step.global_samples = job.plan.global_samples;
  for (auto& raw : job.raw) {
    step.elements += raw.elements;
    step.padding += raw.padding;
    auto batch = maker.finish(std::move(raw));
    batch.global_weight = at::scalar_tensor(static_cast<double>(job.plan.global_samples), at::kDouble);
    batch.epoch = job.epoch;
    batch.step = job.epoch * sampler.steps_per_epoch() + job.step;
    step.local_samples += batch.size();
    step.micro.push_back(std::move(batch));
  }
}

std::optional<StepBatch> Loader::next() {
  auto& s = *state_;
  TRIREME_REQUIRE(s.started, "Loader::next() before Loader::start_epoch(); call start_epoch(epoch) first, each epoch");
  const auto begin = Clock::now();
  s.schedule(1);
  if (s.jobs.empty()) return std::nullopt;
  std::shared_ptr<State::Job> job;
  {
    std::unique_lock lock(s.mutex);
    job = s.jobs.front();
    s.step_ready.wait(lock, [&] { return job->ready; });
    if (job->error) std::rethrow_exception(job->error);
    s.jobs.pop_front();
  }
  s.schedule(static_cast<std::size_t>(std::max<std::int64_t>(0, s.options.prefetch)));
  if (s.options.exchange)
    s.exchange(*job);
  else if (!s.options.device.is_cpu())
    s.finish(*job);
  auto out = std::move(job->batch);
  out.wait_seconds = since(begin);
  if (s.options.on_next) s.options.on_next(out);
  return out;
}

}  // namespace trireme::data
