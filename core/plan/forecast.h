// The forecast of a run: what a step of a training costs, before any rank starts. The step is the engine's own: each
// distinct rank of the layout (its stage, its coordinates along the axes that split the model, and one for each size of
// a data-parallel share) is boosted and trains two steps as a planned rank (planned_ranks.h).
//
//   memory      counted allocation by allocation: weights, gradients, buckets, gathers, live microbatches, loss
//   messages    counted by the same CommStats as in a run, in the second step
//   time        the clocks of the ranks, by the rates of a machine, in the second step
//
// A run can differ where its steps do: samples of other lengths than the first global batch's, and blocks of a user's
// that look at values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/comm_stats.h"
#include "core/plan/machine.h"
#include "core/setup/run_setup.h"

namespace trireme::plan {

/// Bytes of a rank's tensors by what they are for, as `trireme bench` measures them.
struct Memory {
  std::int64_t weights = 0, gradients = 0, optimizer = 0, average = 0;
  std::int64_t gathered = 0;     ///< weights of other ranks, at their peak
  std::int64_t activations = 0;  ///< what remains of the peak
  std::int64_t peak = 0;
  std::int64_t host = 0;  ///< optimizer state in host memory, which is no part of the peak
};

/// Seconds of a steady step.
struct StepTime {
  double step = 0;           ///< of the slowest rank, and its parts:
  double compute = 0;        ///< operators
  double communication = 0;  ///< that computation does not hide
  double idle = 0;           ///< waits of a pipeline's stages for each other
  double data = 0;           ///< of reading samples that no other core does
};

struct Forecast {
  int ranks = 1;
  std::string layout{};  ///< "4 = dp 2 x tp 2"
  std::string plugin{};
  Memory memory{};  ///< of the fullest rank
  StepTime time{};
  /// Messages of a step by all ranks together, {axis, op}.
  std::map<std::pair<std::string, std::string>, comm::CommStatsEntry> messages{};
  double samples = 0;            ///< of the global batch
  std::int64_t micro_batch = 1;  ///< samples of a rank per forward pass
  std::string problem{};         ///< why there is no forecast; "": there is one
  [[nodiscard]] double sent_bytes() const;
};

/// Seconds of one core for a sample that was read before, as in all epochs but the first: the median of a few.
double seconds_of_sample(data::Dataset& data);

/// `setup`: of any rank of a training (prepare_training()). Its data set is read: one sample, or the first global batch
/// of one whose samples have different lengths. @pre MetaKernels exist
/// @throws ConfigError for what a rank would refuse; Error, c10::Error when a step needs values
/// `sample_seconds`: of seconds_of_sample(), if they are known; else they are measured where the machine's cores count.
Forecast forecast(const train::RunSetup& setup, const Machine& machine, std::optional<double> sample_seconds = {});

}  // namespace trireme::plan
