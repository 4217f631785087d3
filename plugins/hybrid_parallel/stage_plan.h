// Which blocks each rank of a pipeline runs, and which parameters stages share: from the model and the plugin's
// options.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipeline/executor.h"
#include "pipeline/partition.h"

namespace trireme::nn {
class Model;
}

namespace trireme::plugins {

struct StagePlan {
  pipeline::Plan pipeline;
  std::vector<pipeline::Stage> stages;  ///< of all ranks, in forward order
  std::vector<pipeline::Stage> mine;    ///< of each of this rank's chunks
  /// A parameter that stages of several ranks use, or several chunks of one.
  struct Shared {
    std::string name;
    std::vector<int> ranks;  ///< of the pipeline, that hold it; the one of its first stage first
  };
  std::vector<Shared> shared;  ///< of all ranks

  /// Sections of gradients (zero/grad_sync.h): one a chunk, the last chunk first; behind them a late one for each
  /// shared parameter, so that the ranks of all its stages cut it into the same parts.
  [[nodiscard]] int gradient_group_of(int chunk) const { return static_cast<int>(mine.size()) - 1 - chunk; }
  [[nodiscard]] int deferred_group(std::size_t of = 0) const { return static_cast<int>(mine.size() + of); }
};

struct StageChoice {
  std::string schedule;
  int chunks = 0;                     ///< 0: the schedule's own number
  std::vector<std::int64_t> given{};  ///< blocks of each stage; empty: by `costs`
  std::vector<double> costs{};        ///< of each block (block_costs.h); empty: all alike
};

/// @throws ConfigError: a partition that the model does not have, or a schedule that is not there
StagePlan plan_stages(nn::Model& model, const StageChoice& choice, int ranks, int rank);
/// Keeps this rank's blocks of a model that has no memory yet; what a user's own modules have made for others is freed.
void keep_stages(nn::Model& model, const StagePlan& plan, const std::string& axis);
/// Maps a parameter's name to its gradient group (zero/grad_sync.h).
std::function<int(const std::string&)> gradient_groups(nn::Model& model, const StagePlan& plan);

}  // namespace trireme::plugins
