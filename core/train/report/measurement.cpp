#include "core/train/report/measurement.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json_parse.h"
#include "core/booster/weight_average.h"
#include "core/comm/comm_stats.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/host_values.h"
#include "core/train/readback.h"
#include "core/train/report/flop_rate.h"
#include "core/train/report/operator_profile.h"
#include "core/train/report/step_clock.h"
#include "core/train/report/summary.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;
using comm::flight::Phase;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// A point in time of the device's current stream.
c10::Event mark_on(c10::Device device) {
  c10::Event mark(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with the time
  mark.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return mark;
}
double seconds_between(const c10::Event& begin, const c10::Event& end) { return begin.elapsedTime(end) / 1000; }

/// The time in forward and backward passes and in the optimizer, while it exists: on a CPU rank without the waits for
/// other ranks, on a GPU that of the device.
class PhaseTimes {
 public:
  explicit PhaseTimes(c10::Device device) : device_(device) {
    comm::flight::watch_phases([this](Phase phase, bool begins) { at(phase, begins); });
  }
  ~PhaseTimes() { comm::flight::watch_phases(nullptr); }
  PhaseTimes(const PhaseTimes&) = delete;
  PhaseTimes& operator=(const PhaseTimes&) = delete;

  /// In seconds, since the object was made. @pre the device has done what was launched
  [[nodiscard]] double of(Phase phase) const {
    const auto& [seconds, marks] = times_[index(phase)];
    double sum = seconds;
    for (std::size_t i = 0; i + 1 < marks.size(); i += 2) sum += seconds_between(marks[i], marks[i + 1]);
    return sum;
  }

 private:
  struct Time {
    double seconds = 0;
    std::vector<c10::Event> marks{};  ///< on a GPU: begins and ends in turn
  };
  static std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

  /// Of one thread: that of the training. Must not throw at an end, where a destructor calls it: what is wrong with the
  /// device is then the error of the next operation.
  void at(Phase phase, bool begins) {
    auto& time = times_[index(phase)];
    if (device_.is_cpu()) {
      const auto now = Clock::now() - comm::time_in_waits();
      if (begins)
        began_ = now;
      else
        time.seconds += std::chrono::duration<double>(now - began_).count();
      return;
    }
    try {
      time.marks.push_back(mark_on(device_));
    } catch (const c10::Error&) {
      if (begins) throw;
    }
  }

  c10::Device device_;
  Clock::time_point began_;
  std::array<Time, 16> times_{};
};

nlohmann::json memory_of(Boosted& run, const comm::World& world) {
  auto fullest = nlohmann::json();
  for (const auto& text : comm::gather_text(world.group(), rank_report(run, world, 0).dump()))
    if (auto rank = parse_json(text);
        fullest.is_null() || rank.at("peak_tensor_bytes") > fullest.at("peak_tensor_bytes"))
      fullest = std::move(rank);
  if (fullest.is_null()) return fullest;
  nlohmann::json out{{"peak", fullest.at("peak_tensor_bytes")}, {"process", fullest.at("peak_rss_bytes")}};
  auto rest = fullest.at("peak_tensor_bytes").get<std::int64_t>();
  for (const auto& [name, key] : {std::pair{"weights", "parameter_bytes"},
                                  {"gradients", "gradient_bytes"},
                                  {"optimizer", "optimizer_bytes"},
                                  {"average", "average_bytes"},
                                  {"gathered", "peak_gathered_bytes"}}) {
    out[name] = fullest.at(key);
    rest -= fullest.at(key).get<std::int64_t>();
  }
  out["activations"] = std::max<std::int64_t>(rest, 0);
  return out;
}

/// The batches of a training without an end.
class Batches {
 public:
  explicit Batches(data::Loader& loader) : loader_(loader) { loader_.start_epoch(0); }
  data::StepBatch next() {
    for (;;) {
      if (auto batch = loader_.next()) return std::move(*batch);
      loader_.start_epoch(++epoch_);
    }
  }

 private:
  data::Loader& loader_;
  std::int64_t epoch_ = 0;
};

/// Trains steps and takes their times.
class MeasuredSteps {
 public:
  MeasuredSteps(Boosted& run, const comm::World& world, FlopRate& flop_rate)
      : run_(run), world_(world), flop_rate_(flop_rate), batches_(*run.loader) {}

  /// Returns when the device, too, has done them. What the members below say is of these steps.
  void train(std::int64_t count) {
    seconds = samples = flops = 0;
    each.clear();
    waits = {};
    const bool on_cpu = world_.device().is_cpu();
    const auto begin = Clock::now();
    std::vector<c10::Event> ends;
    if (!on_cpu) ends.push_back(mark_on(world_.device()));
    clock_.start();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto batch = batches_.next();
      const auto step = run_.train_step(batch);
      if (!on_cpu) ends.push_back(mark_on(world_.device()));
      launched_.add({step.loss}, [](const std::vector<double>& /*loss*/) {});  // what follows the mark on the device
      if (world_.rank() == 0) flops += flop_rate_.of_step(batch).value_or(0);
      samples += static_cast<double>(batch.global_samples);
      const auto time = clock_.end_step(batch.wait_seconds);
      each.push_back(time.seconds);
      waits.data += time.data;
      waits.communication += time.communication;
    }
    launched_.drain();
    seconds = seconds_since(begin);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) each[i] = seconds_between(ends[i], ends[i + 1]);
  }

  double seconds = 0, samples = 0, flops = 0;  ///< of all of them; flops: 0: not known
  std::vector<double> each{};                  ///< seconds of each, on a GPU on the device
  StepTime waits{};                            ///< the waits of all of them

 private:
  Boosted& run_;
  const comm::World& world_;
  FlopRate& flop_rate_;
  Batches batches_;
  Readback launched_;  // limits the steps that wait on a GPU, as in a training
  StepClock clock_;
};

/// The parts of a step, in seconds: measurement.h.
nlohmann::json split_of(const MeasuredSteps& steps, const PhaseTimes& phases, bool on_cpu) {
  const auto mean = [&](double of_all) { return of_all / static_cast<double>(steps.each.size()); };
  nlohmann::json split{{"data", mean(steps.waits.data)}, {"communication", nullptr}};
  double other = steps.seconds - steps.waits.data;
  for (const auto& [name, phase] :
       {std::pair{"forward", Phase::forward}, {"backward", Phase::backward}, {"optimizer", Phase::update}}) {
    split[name] = mean(phases.of(phase));
    other -= phases.of(phase);
  }
  if (on_cpu) {
    split["communication"] = mean(steps.waits.communication);
    other -= steps.waits.communication;
  }
  split["other"] = mean(std::max(0.0, other));
  return split;
}

}  // namespace

nlohmann::json measure_steps(RunSetup setup, comm::World& world, const MeasurementOptions& options) {
  constexpr int kWarmUp = 2;
  constexpr double kMostSteps = 100'000;
  const auto begin = Clock::now();
  FlopRate flop_rate{[&setup] { return setup.model.source().model; }};
  const auto peak = peak_of_all(setup.config.run.peak_tflops, setup.config.train.precision, world);
  Booster booster(world, std::move(setup.plugin), booster_options(setup));
  auto run = booster.boost(training_inputs(setup));
  nlohmann::json out{{"set_up_s", seconds_since(begin)}};

  MeasuredSteps steps(run, world, flop_rate);
  steps.train(1);
  out["first_step_s"] = steps.seconds;
  steps.train(kWarmUp);
  steps.train(kWarmUp);
  const double fitting = options.seconds * kWarmUp / steps.seconds;
  const auto count = comm::broadcast_value(world.group(), std::llround(std::clamp(fitting, 3.0, kMostSteps)));
  const auto sent = world.comm_stats().wire_bytes();
  {
    const PhaseTimes phases(world.device());
    steps.train(count);
    out["split"] = split_of(steps, phases, world.device().is_cpu());
  }
  const auto mean = [&](double of_all) { return of_all / static_cast<double>(count); };
  out["sent_bytes"] = mean(comm::reduce_value(
      world.group(), static_cast<double>(world.comm_stats().wire_bytes() - sent), comm::ReduceOp::sum));
  out["step_s"] = steps.each;
  out["samples"] = mean(steps.samples);
  out["flops"] = steps.flops > 0 ? nlohmann::json(mean(steps.flops)) : nlohmann::json();
  out["peak_flops"] = peak ? nlohmann::json(*peak) : nlohmann::json();
  out["memory"] = memory_of(run, world);
  if (options.profile) {
    constexpr int kProfiled = 3;
    const OperatorProfile profile;
    steps.train(kProfiled);
    out["operators"] = profile.table(kProfiled);
    out["blocks"] = profile.blocks(kProfiled);
    const auto& blocks = run.model->module().blocks();
    for (auto& row : out["blocks"])
      if (const auto block = row.at("block").get<int>(); block >= 0) {
        const auto& type = blocks[static_cast<std::size_t>(block)]->name();  // "trireme::models::vit::Embeddings"
        row["name"] = type.substr(type.rfind(':') + 1);
      }
    out["spans"] = profile.spans();
  }
  return world.rank() == 0 ? out : nlohmann::json();
}

}  // namespace trireme::train
