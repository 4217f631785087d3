#include "core/train/report/measurement.h"

#include <c10/core/Event.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json_parse.h"
#include "core/booster/weight_average.h"
#include "core/comm/comm_stats.h"
#include "core/comm/host_values.h"
#include "core/resume/run_folder.h"
#include "core/train/readback.h"
#include "core/train/report/flop_rate.h"
#include "core/train/report/operator_profile.h"
#include "core/train/report/step_clock.h"
#include "core/train/report/summary.h"
#include "core/train/report/time_split.h"
#include "core/train/run_tuning.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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
  /// The batch that next() returns.
  const data::StepBatch& peek() {
    if (!ahead_) ahead_ = next();
    return *ahead_;
  }
  data::StepBatch next() {
    if (ahead_) return *std::exchange(ahead_, std::nullopt);
    for (;;) {
      if (auto batch = loader_.next()) return std::move(*batch);
      loader_.start_epoch(++epoch_);
    }
  }

 private:
  data::Loader& loader_;
  std::int64_t epoch_ = 0;
  std::optional<data::StepBatch> ahead_;
};

/// Trains steps and takes their times.
class MeasuredSteps {
 public:
  MeasuredSteps(Boosted& run, const comm::World& world, FlopRate& flop_rate)
      : run_(run), world_(world), flop_rate_(flop_rate), batches_(*run.loader) {}

  const data::StepBatch& first_batch() { return batches_.peek(); }
  /// Returns when the device, too, has done them. What the members below say is of these steps.
  void train(std::int64_t count, TimeSplit* split = nullptr) {
    seconds = samples = flops = 0;
    each.clear();
    const bool on_cpu = world_.device().is_cpu();
    const auto begin = Clock::now();
    std::vector<c10::Event> ends;
    if (!on_cpu) ends.push_back(mark_on(world_.device()));
    clock_.start();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto batch = batches_.next();
      if (split != nullptr) split->begin_step();
      const auto step = run_.train_step(batch);
      if (!on_cpu) ends.push_back(mark_on(world_.device()));
      launched_.add({step.loss}, [](const std::vector<double>& /*loss*/) {});  // what follows the mark on the device
      if (world_.rank() == 0) flops += flop_rate_.of_step(batch).value_or(0);
      samples += static_cast<double>(batch.global_samples);
      const auto time = clock_.end_step(batch.wait_seconds);
      each.push_back(time.seconds);
      if (split != nullptr) split->end_step(time);
    }
    launched_.drain();
    seconds = seconds_since(begin);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) each[i] = seconds_between(ends[i], ends[i + 1]);
  }

  double seconds = 0, samples = 0, flops = 0;  ///< of all of them; flops: 0: not known
  std::vector<double> each{};                  ///< seconds of each, on a GPU on the device

 private:
  Boosted& run_;
  const comm::World& world_;
  FlopRate& flop_rate_;
  Batches batches_;
  Readback launched_;  // limits the steps that wait on a GPU, as in a training
  StepClock clock_;
};

}  // namespace

nlohmann::json measure_steps(RunSetup setup, comm::World& world, const MeasurementOptions& options) {
  constexpr int kWarmUp = 2;
  constexpr double kMostSteps = 100'000;
  const auto begin = Clock::now();
  FlopRate flop_rate{[&setup] { return setup.model.source().model; }};
  const auto config_toml = config_toml_of(setup);
  const auto peak = peak_of_all(setup.config.run.peak_tflops, setup.config.train.precision, world);
  Booster booster(world, std::move(setup.plugin), booster_options(setup.config));
  auto run = booster.boost(training_inputs(setup));
  nlohmann::json out{{"set_up_s", seconds_since(begin)}};

  MeasuredSteps steps(run, world, flop_rate);
  if (auto tuned = tune_measured(setup, config_toml, booster, run, steps.first_batch()); !tuned.empty())
    out["tuned"] = std::move(tuned);
  steps.train(1);
  out["first_step_s"] = steps.seconds;
  steps.train(kWarmUp);
  steps.train(kWarmUp);
  const double fitting = options.seconds * kWarmUp / steps.seconds;
  const auto count = comm::broadcast_value(world.group(), std::llround(std::clamp(fitting, 3.0, kMostSteps)));
  const auto sent = world.comm_stats().wire_bytes();
  {
    TimeSplit split(world.device());
    steps.train(count, &split);
    out["split"] = split.mean(steps.seconds);
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
