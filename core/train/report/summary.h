// summary.json: the run's result, and each rank's memory and communication.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/data/datasets.h"
#include "core/resume/resume.h"
#include "core/resume/resume_point.h"
#include "core/resume/run_times.h"
#include "core/train/evaluate.h"

namespace trireme::train {

/// A number of samples of each split, such as {"train", 2}. Splits without any are left out.
using SampleCounts = std::map<std::string, std::size_t>;
struct AllSampleCounts {
  SampleCounts distinct;              ///< over all ranks, each sample counted once
  std::vector<SampleCounts> by_rank;  ///< those that each rank met; epochs give a sample to different ranks
};
/// Counts the samples whose indices `found` returns. Complete on rank 0, and empty on the others. Collective.
AllSampleCounts count_samples(const data::Datasets& data, const comm::World& world,
                              std::vector<std::int64_t> (data::Dataset::*found)() const);
/// This rank's {rank, parameter_bytes, peak_gathered_bytes, gradient_bytes, optimizer_bytes, optimizer_host_bytes,
/// peak_tensor_bytes, peak_rss_bytes, samples, comm}.
nlohmann::json rank_report(Boosted& run, const comm::World& world, std::int64_t samples);

/// The result of the run, without the reports of the ranks.
struct RunResult {
  TrainerState state;
  std::string run_dir;
  Metric shown{};               ///< RunSetup::shown
  std::int64_t resumed_at = 0;  ///< optimizer step; 0: from the start
  double seconds = 0;
  RunTimes times{};                       ///< of all starts of the run; on rank 0
  std::optional<EvalResult> test{};       ///< for the last weights
  std::optional<EvalResult> best_test{};  ///< for the best epoch's weights, if they differ from the last
  bool exports_best = false;              ///< RUN/model holds the best weights
  std::string stopped_by{};               ///< the key that stopped the run before its last epoch, or ""
  /// It reached its last step, or early stopping ended it. Otherwise the same command goes on.
  [[nodiscard]] bool is_finished() const { return ends_training(stopped_by); }
  AllSampleCounts skipped{};            ///< unreadable samples
  SampleCounts oriented{};              ///< images with an EXIF orientation
  std::optional<double> flops_per_s{};  ///< mean of the training steps, over all ranks (core/train/report/flop_rate.h)
  std::optional<double> peak_flops{};   ///< the peak of all ranks' devices in FLOP/s
  [[nodiscard]] std::optional<double> mfu() const {
    return flops_per_s && peak_flops ? std::optional(*flops_per_s / *peak_flops) : std::nullopt;
  }

  /// Whether the last weights are those of the best evaluation.
  [[nodiscard]] bool best_is_last() const { return state.best.step == state.at.global_step; }
};
/// The last lines on the screen: the time, the samples that each rank skipped, the images that EXIF calls turned, then
/// the exported weights with their metric.
std::vector<std::string> closing_lines(const RunResult& result);
nlohmann::json run_summary(const RunResult& result, Booster& booster, const std::vector<std::string>& rank_reports);

}  // namespace trireme::train
