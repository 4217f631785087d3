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

SamplerOptions sampler_options(const Dataset& dataset, const LoaderOptions& o) {
  return {dataset.size(), o.global_batch, o.micro_batch, o.dp_rank, o.dp_size, o.drop_last};
}

void check(const Dataset& dataset, const LoaderOptions& o) {
  TRIREME_REQUIRE(o.global_batch > 0 && o.micro_batch > 0 && 0 <= o.dp_rank && o.dp_rank < o.dp_size,
                  "invalid loader options: global batch {}, micro batch {}, rank {} of {}", o.global_batch,
                  o.micro_batch, o.dp_rank, o.dp_size);
  TRIREME_REQUIRE(!o.evaluation || !(o.shuffle || o.augment || o.drop_last),
                  "an evaluation loader cannot shuffle, augment or drop samples");
  check_shares(o.global_batch, o.dp_size);
  if (dataset.size() == 0) throw DataError("the data set holds no samples");
  if (o.drop_last && dataset.size() < o.global_batch)
    throw DataError(
        fmt::format("{} samples do not fill one global batch of {}, and train.drop_last = true drops incomplete "
                    "batches; set it to false, or train.global_batch to at most {}",
                    dataset.size(), o.global_batch, dataset.size()));
}

}  // namespace

const Fields<LoadingOptions>& loading_fields() {
  using O = LoadingOptions;
  static const auto table =
      Fields<O>("data", "")
          .add("workers", &O::workers,
               "Threads per rank that read samples. Unset: an equal share of the machine's cores, without those on "
               "which "
               "a CPU rank computes, between 1 and 16.",
               {.min = 1, .max = 1024})
          .add("prefetch", &O::prefetch, "Number of steps whose samples are loaded ahead.", {.min = 1, .max = 1024});
  return table;
}

void check_shares(std::int64_t global_batch, int ranks) {
  if (ranks > global_batch)
    throw ConfigError(
        fmt::format("train.global_batch: a global batch of {} cannot be split over {} data-parallel ranks; use at "
                    "least {}, or at most {} ranks",
                    global_batch, ranks, ranks, global_batch));
}

std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options) {
  check(dataset, options);
  return Sampler(sampler_options(dataset, options)).steps_per_epoch();
}

struct Loader::State {
  /// One step in progress: workers claim and read its samples; the last one to finish assembles the batches.
  struct Job {
    std::int64_t epoch = 0, step = 0;
    StepPlan plan;
    std::vector<std::int64_t> ids;            ///< of this rank's share, after replacements, and of StepPlan::after
    std::vector<std::optional<Sample>> read;  ///< by position in `ids`
    std::size_t claimed = 0, finished = 0;    ///< guarded by the loader's mutex, like the members below
    std::exception_ptr error;
    std::size_t error_at = 0;
    bool ready = false;
    StepBatch batch;
  };

  State(std::shared_ptr<Dataset> set, LoaderOptions opts)
      : dataset(std::move(set)),
        options(std::move(opts)),
        sampler(sampler_options(*dataset, options)),
        combines(options.augment && !dataset->combined_targets().empty()),
        maker(dataset, {options.needed, options.strict, options.dtype, options.device.is_cuda(), combines}) {}

  void work();
  void read_one(Job& job, std::size_t at);
  void assemble(Job& job);
  Batch assemble_micro(Job& job, const shard::Range& positions);
  void schedule(std::size_t jobs);
  void stop();

  std::shared_ptr<Dataset> dataset;
  LoaderOptions options;
  Sampler sampler;
  bool combines;  ///< each sample with the one after it in the global batch
  BatchMaker maker;

  std::mutex mutex;
  std::condition_variable work_waits, step_ready;
  std::deque<std::shared_ptr<Job>> jobs;  ///< in step order; the front is what next() returns
  bool stopping = false;

  bool started = false;
  std::int64_t epoch = 0, scheduled = 0;  ///< `scheduled`: the step that schedule() creates next
  std::vector<std::int64_t> order;
  std::vector<std::thread> workers;
};

Loader::Loader(std::shared_ptr<Dataset> dataset, LoaderOptions options) {
  check(*dataset, options);
  state_ = std::make_unique<State>(std::move(dataset), options);
  try {
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, options.workers); ++i)
      state_->workers.emplace_back([state = state_.get()] { state->work(); });
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

void Loader::start_epoch(std::int64_t epoch, std::int64_t first_step) {
  auto& s = *state_;
  TRIREME_REQUIRE(epoch >= 0 && first_step >= 0 && first_step <= steps_per_epoch(),
                  "Loader::start_epoch({}, {}): epochs count from 0, and this one has {} steps", epoch, first_step,
                  steps_per_epoch());
  s.order = epoch_order(*s.dataset, s.options.shuffle, s.options.seed, epoch);
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

/// Fills the queue to `wanted` steps, or to the end of the epoch.
void Loader::State::schedule(std::size_t wanted) {
  while (jobs.size() < wanted && scheduled < sampler.steps_per_epoch()) {
    auto job = std::make_shared<Job>();
    job->epoch = epoch;
    job->step = scheduled++;
    job->plan = sampler.step(job->step);
    job->ids.assign(order.begin() + job->plan.share.begin, order.begin() + job->plan.share.end);
    if (combines && !job->ids.empty()) job->ids.push_back(order[static_cast<std::size_t>(job->plan.after)]);
    job->read.resize(job->ids.size());
    if (job->ids.empty()) {
      assemble(*job);
      job->ready = true;
    }
    {
      const std::lock_guard lock(mutex);
      jobs.push_back(std::move(job));
    }
    work_waits.notify_all();
  }
}

void Loader::State::work() {
  // Ranks and workers share the cores, so code that a worker calls must not start its own threads.
  const c10::ParallelGuard serial(true);
  const memory::OfHost on_host;
  std::unique_lock lock(mutex);
  const auto first_open = [&]() -> std::shared_ptr<Job> {
    for (const auto& job : jobs)
      if (job->claimed < job->ids.size()) return job;
    return nullptr;
  };
  while (true) {
    std::shared_ptr<Job> job;
    work_waits.wait(lock, [&] { return stopping || (job = first_open()) != nullptr; });
    if (stopping) return;
    const auto at = job->claimed++;
    std::exception_ptr error;
    lock.unlock();
    try {
      read_one(*job, at);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && (!job->error || at < job->error_at)) {
      job->error = error;
      job->error_at = at;
    }
    if (++job->finished < job->ids.size()) continue;
    if (!job->error) {
      lock.unlock();
      try {
        assemble(*job);
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
  auto& id = job.ids[at];
  const auto n = dataset->size();
  for (std::int64_t attempt = 0; attempt < n; ++attempt) {
    job.read[at] = maker.read(id, job.epoch, options.augment);
    if (job.read[at] || options.evaluation) return;
    id = (id + 1) % n;
  }
  throw DataError(fmt::format("none of the {} samples of the data set can be read", n));
}

void Loader::State::assemble(Job& job) {
  job.batch.global_samples = job.plan.global_samples;
  for (const auto& positions : job.plan.micro) job.batch.micro.push_back(assemble_micro(job, positions));
  for (const auto& micro : job.batch.micro) job.batch.local_samples += micro.size();
  job.read.clear();
}

Batch Loader::State::assemble_micro(Job& job, const shard::Range& positions) {
  std::vector<Sample> samples;
  std::vector<std::int64_t> ids;
  for (auto position = positions.begin; position < positions.end; ++position) {
    const auto at = static_cast<std::size_t>(position - job.plan.share.begin);
    if (!job.read[at]) continue;  // skipped
    // The next sample still is as it was read: samples are combined in order, and the first one is read twice.
    samples.push_back(combines ? dataset->combine(std::move(*job.read[at]), *job.read[at + 1], job.ids[at], job.epoch)
                               : std::move(*job.read[at]));
    ids.push_back(job.ids[at]);
  }
  auto batch = maker.make(std::move(samples), ids);
  batch.global_weight = at::scalar_tensor(static_cast<double>(job.plan.global_samples), at::kDouble);
  batch.epoch = job.epoch;
  batch.step = job.epoch * sampler.steps_per_epoch() + job.step;
  return batch;
}

std::optional<StepBatch> Loader::next() {
  auto& s = *state_;
  TRIREME_REQUIRE(s.started, "Loader::next() before Loader::start_epoch(); call start_epoch(epoch) first, each epoch");
  const auto begin = std::chrono::steady_clock::now();
  s.schedule(1);
  if (s.jobs.empty()) return std::nullopt;
  StepBatch out;
  {
    std::unique_lock lock(s.mutex);
    const auto job = s.jobs.front();
    s.step_ready.wait(lock, [&] { return job->ready; });
    if (job->error) std::rethrow_exception(job->error);
    out = std::move(job->batch);
    s.jobs.pop_front();
  }
  s.schedule(static_cast<std::size_t>(std::max<std::int64_t>(0, s.options.prefetch)));
  if (!s.options.device.is_cpu())
    for (auto& micro : out.micro) {
      for (auto* tensors : {&micro.inputs, &micro.targets})
        for (auto& [name, tensor] : *tensors)
          if (!tensor.is_meta()) tensor = tensor.to(s.options.device, /*non_blocking=*/true);
    }
  out.wait_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (s.options.on_next) s.options.on_next(out);
  return out;
}

}  // namespace trireme::data
