#include "core/train/report/measurement.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
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
#include "core/train/report/step_clock.h"
#include "core/train/report/summary.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;
using comm::flight::Phase;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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

  /// In seconds, since the object was made. On a GPU it waits for the device.
  double of(Phase phase) {
    auto& [seconds, marks] = times_[index(phase)];
    for (; marks.size() > 1; marks.erase(marks.begin(), marks.begin() + 2)) {
      marks[1].synchronize();
      seconds += marks[0].elapsedTime(marks[1]) / 1000;
    }
    return seconds;
  }

 private:
  struct Time {
    double seconds = 0;
    std::deque<c10::Event> marks{};  ///< on a GPU: begins and ends in turn
  };
  static std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

  /// Of one thread: that of the training.
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
    auto& mark = time.marks.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    mark.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  c10::Device device_;
  Clock::time_point began_;
  std::array<Time, 16> times_{};
};

/// The bytes that this rank has sent so far.
double sent_bytes(const comm::World& world) {
  double bytes = 0;
  for (const auto& [key, entry] : world.comm_stats().totals()) bytes += static_cast<double>(entry.wire_bytes);
  return bytes;
}

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

}  // namespace

nlohmann::json measure_steps(RunSetup setup, comm::World& world, double seconds) {
  constexpr int kWarmUp = 2;
  constexpr double kMostSteps = 100'000;
  const auto begin = Clock::now();
  FlopRate flop_rate{[&setup] { return setup.model.source().model; }};
  const auto peak = peak_of_all(setup.config.run.peak_tflops, setup.config.train.precision, world);
  Booster booster(world, std::move(setup.plugin), booster_options(setup));
  auto run = booster.boost(training_inputs(setup));
  nlohmann::json out{{"set_up_s", seconds_since(begin)}};

  Batches batches(*run.loader);
  Readback launched;  // limits the steps that wait on a GPU, as in a training
  StepClock clock;
  std::optional<double> flops;
  std::vector<double> each;
  double samples = 0;
  StepTime sum;
  /// Returns the seconds that the steps have taken, on the device too.
  const auto train = [&](std::int64_t steps) {
    each.clear();
    samples = 0;
    sum = {};
    const auto from = Clock::now();
    clock.start();
    for (std::int64_t i = 0; i < steps; ++i) {
      const auto batch = batches.next();
      launched.add({run.train_step(batch).loss}, [](const std::vector<double>& /*loss*/) {});
      if (world.rank() == 0) flops = flop_rate.of_step(batch);
      const auto time = clock.end_step(batch.wait_seconds);
      samples += static_cast<double>(batch.global_samples);
      each.push_back(time.seconds);
      sum.data += time.data;
      sum.communication += time.communication;
    }
    launched.drain();
    sum.seconds = seconds_since(from);
    each.back() += sum.seconds - std::accumulate(each.begin(), each.end(), 0.0);  // it has waited for all of them
    return sum.seconds;
  };
  out["first_step_s"] = train(1);
  train(kWarmUp);
  const double one = train(kWarmUp) / kWarmUp;
  const auto count = comm::broadcast_value(world.group(), std::llround(std::clamp(seconds / one, 3.0, kMostSteps)));

  const double sent = sent_bytes(world);
  {
    PhaseTimes phases(world.device());
    train(count);
    const auto mean = [&](double of_all) { return of_all / static_cast<double>(count); };
    double other = sum.seconds - sum.data;
    nlohmann::json split{{"data", mean(sum.data)}, {"communication", nullptr}};
    for (const auto& [name, phase] :
         {std::pair{"forward", Phase::forward}, {"backward", Phase::backward}, {"optimizer", Phase::update}}) {
      const double time = phases.of(phase);
      split[name] = mean(time);
      other -= time;
    }
    if (world.device().is_cpu()) {
      split["communication"] = mean(sum.communication);
      other -= sum.communication;
    }
    split["other"] = mean(std::max(0.0, other));
    out["split"] = std::move(split);
  }
  out["step_s"] = each;
  out["samples"] = samples / static_cast<double>(count);
  out["flops"] = flops ? nlohmann::json(*flops) : nlohmann::json();
  out["peak_flops"] = peak ? nlohmann::json(*peak) : nlohmann::json();
  const double bytes = comm::reduce_value(world.group(), sent_bytes(world) - sent, comm::ReduceOp::sum);
  out["sent_bytes"] = bytes / static_cast<double>(count);
  out["memory"] = memory_of(run, world);
  return world.rank() == 0 ? out : nlohmann::json();
}

}  // namespace trireme::train
