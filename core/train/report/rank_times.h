// RankTimes: shows the ranks that the others wait for. Every run.rank_times_every steps one line, and one event in
// metrics.jsonl, has the mean time of a step that the ranks spent waiting for data, computing and communicating: the
// least, the most, and which rank had the most. The slow rank is the one that computes (or reads data) longest; the
// others communicate longest, because they wait for it.
//
// On a GPU the host does not wait for communication (step_clock.h), and nothing here makes it: there "compute" is the
// rest of the step with its communication.
#pragma once

#include <array>
#include <cstdint>

#include "core/train/callback.h"
#include "core/train/readback.h"

namespace trireme::train {

class RankTimes final : public RunCallback {
 public:
  /// `every`: optimizer steps, at least 1
  explicit RankTimes(std::int64_t every) : every_(every) {}
  void on_step_end(RunContext& run, const StepEnd& step) override;
  void on_finish(RunContext& run, const RunResult& result) override;

 private:
  static constexpr std::size_t kKinds = 3;
  void report(RunContext& run);

  std::int64_t every_, steps_ = 0;
  std::array<double, kKinds> seconds_{};  // data, compute and communication, since the last report
  Readback numbers_;
};

}  // namespace trireme::train
