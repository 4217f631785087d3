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
struct Outcome {
  const Standing& standing;
  std::optional<EvalResult> test;
  std::int64_t resumed_at = 0;  ///< optimizer step; 0: from the start
  double seconds = 0;
  std::map<std::string, std::size_t> skipped_samples;
};
nlohmann::json run_summary(const Outcome& outcome, Booster& booster, const std::vector<std::string>& rank_reports);

}  // namespace trireme::train
