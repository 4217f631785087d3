// summary.json: the run's result, and what each rank held and sent.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/booster.h"
#include "core/data/dataset.h"
#include "core/train/evaluate.h"
#include "core/train/resume.h"

namespace trireme::train {

/// Peak resident memory of this process so far, bytes.
std::int64_t peak_rss_bytes();
/// How many samples of each split ("train": 2) any rank could not read, each counted once; splits without are left out.
/// Collective.
std::map<std::string, std::size_t> skipped_samples(const data::Datasets& data, const comm::World& world);
/// {parameter_bytes, gradient_bytes, optimizer_bytes, optimizer_host_bytes, peak_rss_bytes, samples, comm} of this
/// rank.
nlohmann::json rank_report(Boosted& run, const comm::World& world, std::int64_t samples);

/// What the run came to, beside what the ranks tell of themselves.
struct RunResult {
  const TrainerState& state;
  std::string run_dir;
  std::int64_t resumed_at = 0;  ///< optimizer step; 0: from the start
  double seconds = 0;
  std::optional<EvalResult> test{};       ///< of the last weights
  std::optional<EvalResult> best_test{};  ///< of the best epoch's, where these are others
  std::string stopped_by{};               ///< the key that ended it before its last epoch, or ""
  std::map<std::string, std::size_t> skipped_samples{};

  /// Whether the last weights are those of the best epoch.
  [[nodiscard]] bool best_is_last() const { return state.best.step == state.last.step; }
};
/// 0.957 -> "95.7 %"
std::string percent_text(double share);
/// The last lines of the screen: the time, then what is exported, each with its own scores.
std::vector<std::string> closing_lines(const RunResult& result);
nlohmann::json run_summary(const RunResult& result, Booster& booster, const std::vector<std::string>& rank_reports);

}  // namespace trireme::train
