#include "core/plan/forecast.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/planned_device.h"
#include "core/base/trace.h"
#include "core/booster/weight_average.h"
#include "core/data/dataset_wrapper.h"
#include "core/data/rows.h"
#include "core/nn/autograd/generator_state.h"
#include "core/plan/measured.h"
#include "core/plan/operator_watch.h"
#include "core/plan/planned_ranks.h"
#include "core/setup/plugin_sections.h"

namespace trireme::plan {
namespace {

using Messages = std::map<std::pair<std::string, std::string>, comm::CommStatsEntry>;

/// A rank that is planned, and how many of the world's it stands for.
struct Distinct {
  int rank = 0;
  int count = 1;
};

/// The ranks of one pass: those that exchange messages, such as the stages of a pipeline.
using Pass = std::vector<Distinct>;

/// The rank with these coordinates.
int rank_at(const comm::Axes& axes, const std::vector<int>& at) {
  int rank = 0;
  for (std::size_t i = 0; i < axes.size(); ++i) rank = rank * axes[i].size + at[i];
  return rank;
}

/// The first share of each size along the data-parallel axes: the sizes differ by at most one, the larger ones first.
std::vector<Distinct> share_classes(std::int64_t global_batch, int shares) {
  const auto larger = static_cast<int>(global_batch % shares);
  if (larger == 0) return {{0, shares}};
  return {{0, larger}, {larger, shares - larger}};
}

/// Whether its ranks send messages to each other, so that they are planned at the same time.
bool is_pipeline(const comm::Axis& axis) { return axis.kind.name == "pp"; }

std::vector<Pass> distinct_ranks(const comm::Axes& axes, std::int64_t global_batch) {
  constexpr int kMostParts = 4;
  int shares = 1, stages = 1, passes = 1;
  for (const auto& axis : axes) (axis.kind.splits_samples ? shares : is_pipeline(axis) ? stages : passes) *= axis.size;
  // Of many parts of a model the first is the largest, and all but the last are taken to be like it.
  std::vector<Distinct> parts;
  if (passes <= kMostParts)
    for (int part = 0; part < passes; ++part) parts.push_back({part, 1});
  else
    parts = {{0, passes - 1}, {passes - 1, 1}};
  std::vector<Pass> out;
  for (const auto& share : share_classes(global_batch, shares))
    for (const auto& part : parts) {
      Pass pass;
      for (int stage = 0; stage < stages; ++stage) {
        std::vector<int> at(axes.size());
        int of_share = share.rank, of_stage = stage, rest = part.rank;
        for (std::size_t i = axes.size(); i-- > 0;) {
          auto& left = axes[i].kind.splits_samples ? of_share : is_pipeline(axes[i]) ? of_stage : rest;
          at[i] = left % axes[i].size;
          left /= axes[i].size;
        }
        pass.push_back({rank_at(axes, at), share.count * part.count});
      }
      out.push_back(std::move(pass));
    }
  return out;
}

/// Reads one sample for all, where all have the shapes of one. Thread-safe.
class OneSample final : public data::DatasetWrapper, public data::RowSamples {
 public:
  explicit OneSample(std::shared_ptr<data::Dataset> of) : DatasetWrapper(std::move(of)), rows_(around().rows()) {}

  std::optional<data::Sample> get(std::int64_t, std::int64_t, bool augment) override {
    return kept({}, [&](std::int64_t i) { return around().get(i, 0, augment); });
  }
  std::optional<data::Sample> get_with(const std::vector<std::string>& inputs, std::int64_t, std::int64_t,
                                       bool augment) override {
    return kept(inputs, [&](std::int64_t i) { return around().get_with(inputs, i, 0, augment); });
  }
  [[nodiscard]] data::RowSamples* rows() override { return rows_ == nullptr ? nullptr : this; }

  [[nodiscard]] data::RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const override {
    return rows_->row_spec(inputs, augment);
  }
  std::optional<data::Sample> read(const std::vector<std::string>& inputs, std::int64_t, std::int64_t,
                                   bool augment) override {
    return kept(inputs, [&](std::int64_t i) { return rows_->read(inputs, i, 0, augment); });
  }
  [[nodiscard]] data::Sample transform_batch(data::Sample batch, bool combine) const override {
    return rows_->transform_batch(std::move(batch), combine);
  }

 private:
  template <class Read>
  std::optional<data::Sample> kept(const std::vector<std::string>& inputs, const Read& read) {
    const std::lock_guard lock(mutex_);
    auto& sample = samples_[inputs];
    constexpr std::int64_t kMostUnreadable = 16;
    for (std::int64_t i = 0; !sample && i < std::min(size(), kMostUnreadable); ++i) sample = read(i);
    return sample;
  }

  data::RowSamples* rows_;
  std::mutex mutex_;
  std::map<std::vector<std::string>, std::optional<data::Sample>> samples_;  ///< by the inputs that were asked for
};

std::shared_ptr<data::Dataset> data_to_plan(const std::shared_ptr<data::Dataset>& data) {
  const auto spec = data->spec();
  const bool varies = std::any_of(spec.inputs.begin(), spec.inputs.end(), [](const auto& in) { return in.varies(); });
  return varies ? data : std::make_shared<OneSample>(data);
}

/// What a CPU rank's step waits for samples that take `reading` seconds of a core: nothing where another core reads
/// them in the time, and all of it where there is none.
double wait_for_data(const Machine& machine, int ranks_on_host, double reading, double step) {
  if (machine.cores == 0) return 0;
  const double spare = static_cast<double>(machine.cores) / ranks_on_host - at::get_num_threads();
  return spare < 0.5 ? reading : std::max(0.0, reading / spare - step);
}

/// What one planned rank has found out.
struct Found {
  Memory memory{};
  StepTime time{};
  Messages messages{};
  double samples = 0;
  std::string layout{};
};

Messages difference(Messages after, const Messages& before) {
  for (auto& [key, entry] : after)
    if (const auto was = before.find(key); was != before.end()) {
      entry.calls -= was->second.calls;
      entry.payload_elements -= was->second.payload_elements;
      entry.payload_bytes -= was->second.payload_bytes;
      entry.wire_bytes -= was->second.wire_bytes;
    }
  return after;
}

Memory memory_of(const Boosted& run, const PlannedDevice& device) {
  const auto model = run.model->report();
  const auto optimizer = run.optimizer->report();
  Memory out{.weights = model.parameter_bytes,
             .gradients = optimizer.gradient_bytes,
             .optimizer = optimizer.state_bytes - optimizer.host_state_bytes,
             .average = run.average ? run.average->bytes() : 0,
             .gathered = model.peak_gathered_bytes,
             .peak = device.peak(),
             .host = optimizer.host_state_bytes};
  out.activations =
      std::max<std::int64_t>(0, out.peak - out.weights - out.gradients - out.optimizer - out.average - out.gathered);
  return out;
}

/// What all planned ranks of a run have in common.
struct Planning {
  const train::RunSetup& setup;
  const Machine& machine;
  std::shared_ptr<data::Dataset> data;
  double sample_seconds = 0;
};

/// Boosts and trains as one rank of the layout.
Found train_planned(const Planning& planning, std::unique_ptr<Plugin> plugin, BoostInputs inputs, int rank,
                    PlannedMail& mail) {
  const auto& [setup, machine, data, sample_seconds] = planning;
  constexpr int kSteps = 2;  // the first one makes the optimizer's state
  PlannedDevice device(machine.type());
  auto info = setup.launch;
  info.rank = rank;
  info.local_size = static_cast<int>(std::min<std::int64_t>(info.size, machine.ranks_per_host));
  info.local_rank = rank % info.local_size;
  PlannedWorld world(info, machine, mail);
  auto options = train::booster_options(setup.config);
  options.loading.prefetch = 1;
  options.loading.workers = 1;
  const Log quiet(/*rank=*/1);
  Booster booster(world, std::move(plugin), std::move(options), &quiet);
  auto run = booster.boost(std::move(inputs));
  Found found{.layout = booster.mesh().formula()};
  std::optional<OperatorWatch> operators;
  if (machine.has_rates())
    operators.emplace(c10::kMeta, [&, slower = machine.crowding_of(info.local_size)](const SeenOperator& seen) {
      world.clock().run(slower * machine.seconds(seen.work));
    });
  for (int step = 0; step < kSteps; ++step) {
    const auto begun = world.clock();
    const auto before = world.comm_stats().totals();
    std::optional<data::StepBatch> batch;
    {
      // CPU ranks keep batches outside the memory that is counted.
      const memory::OfHost not_counted(machine.type() == c10::kCPU);
      run.loader->start_epoch(step);
      batch = run.loader->next();
    }
    run.train_step(*batch);
    found.samples = static_cast<double>(batch->global_samples);
    const auto& ended = world.clock();
    const double trained = ended.now - begun.now;
    const double waited =
        wait_for_data(machine, info.local_size, sample_seconds * static_cast<double>(batch->local_samples), trained);
    found.time = {trained + waited, ended.compute - begun.compute, ended.communication - begun.communication,
                  ended.idle - begun.idle, waited};
    found.messages = difference(world.comm_stats().totals(), before);
  }
  found.memory = memory_of(run, device);
  return found;
}

/// What a planned rank boosts.
struct Inputs {
  std::unique_ptr<Plugin> plugin;
  BoostInputs model;
};

std::vector<Inputs> inputs_of_pass(const Planning& planning, std::size_t ranks) {
  const auto& setup = planning.setup;
  const memory::OfHost not_this_ranks;  // a user's own modules have memory
  std::vector<Inputs> out;
  for (std::size_t i = 0; i < ranks; ++i) {
    auto config = setup.config;  // what a plugin shares with [train] is resolved in it, again
    out.push_back({train::configured_plugin(config), train::training_inputs(setup)});
    out.back().model.data = planning.data;
  }
  return out;
}

/// Trains all ranks of a pass, each in its thread. @throws an error of a rank, if possible one that is no consequence
/// of another's end
std::vector<Found> train_pass(const Planning& planning, const Pass& pass) {
  std::set<int> ranks;
  for (const auto& each : pass) ranks.insert(each.rank);
  PlannedMail mail(ranks);
  auto inputs = inputs_of_pass(planning, pass.size());
  std::vector<Found> found(pass.size());
  std::vector<std::exception_ptr> errors(pass.size());
  std::vector<std::thread> threads;
  const int computing = at::get_num_threads();  // new threads have their own default
  const auto train = [&](std::size_t i) {
    at::set_num_threads(computing);
    try {
      auto& [plugin, model] = inputs[i];
      found[i] = train_planned(planning, std::move(plugin), std::move(model), pass[i].rank, mail);
    } catch (...) {
      errors[i] = std::current_exception();
    }
    mail.leave(pass[i].rank);
  };
  try {
    for (std::size_t i = 0; i < pass.size(); ++i) threads.emplace_back(train, i);
  } catch (...) {  // the system has no thread for it, which the others would wait for
    errors[threads.size()] = std::current_exception();
    for (std::size_t i = threads.size(); i < pass.size(); ++i) mail.leave(pass[i].rank);
  }
  for (auto& thread : threads) thread.join();
  std::exception_ptr consequence;
  for (const auto& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      consequence = error;
    }
  }
  if (consequence) std::rethrow_exception(consequence);
  return found;
}

void add(Messages& all, const Messages& of_one, int ranks) {
  const auto times = static_cast<std::uint64_t>(ranks);
  for (const auto& [key, entry] : of_one) {
    if (entry.calls == 0) continue;
    auto& sum = all[key];
    sum.calls += times * entry.calls;
    sum.payload_elements += times * entry.payload_elements;
    sum.payload_bytes += times * entry.payload_bytes;
    sum.wire_bytes += times * entry.wire_bytes;
  }
}

}  // namespace

double Forecast::sent_bytes() const {
  double bytes = 0;
  for (const auto& [key, entry] : messages) bytes += static_cast<double>(entry.wire_bytes);
  return bytes;
}

double seconds_of_sample(data::Dataset& data) {
  constexpr std::int64_t kSamples = 9;
  const memory::OfHost not_this_ranks;
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < std::min(data.size(), kSamples); ++i) {
    data.get(i, 0, /*augment=*/true);
    const double begun = trace::now();
    data.get(i, 0, /*augment=*/true);
    seconds.push_back(trace::now() - begun);
  }
  return seconds.empty() ? 0 : median(std::move(seconds));
}

Forecast forecast(const train::RunSetup& setup, const Machine& machine, std::optional<double> sample_seconds) {
  const nn::GeneratorStateGuard generators(at::kCPU);  // boosting sets their seeds
  Planning planning{.setup = setup, .machine = machine, .data = data_to_plan(setup.data.train)};
  if (machine.cores > 0)
    planning.sample_seconds = sample_seconds ? *sample_seconds : seconds_of_sample(*setup.data.train);
  auto config = setup.config;
  const auto plugin = train::configured_plugin(config);
  Forecast out{.ranks = setup.launch.size, .plugin = plugin->name(), .micro_batch = setup.batch.micro};
  for (const auto& pass : distinct_ranks(plugin->axes(setup.launch.size), setup.batch.global)) {
    const auto found = train_pass(planning, pass);
    for (std::size_t i = 0; i < pass.size(); ++i) {
      add(out.messages, found[i].messages, pass[i].count);
      if (found[i].memory.peak > out.memory.peak) out.memory = found[i].memory;
      if (found[i].time.step > out.time.step) out.time = found[i].time;
      out.samples = found[i].samples;
      out.layout = found[i].layout;
    }
  }
  return out;
}

}  // namespace trireme::plan
