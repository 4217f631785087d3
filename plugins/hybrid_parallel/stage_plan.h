// Which blocks each rank of a pipeline runs, and which parameters several stages share, from the model and the plugin's
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
  /// A parameter that stages of several ranks use, or several chunks of one rank.
  struct Shared {
    std::string name;
    std::vector<int> ranks;  ///< the pipeline ranks that hold it; that of its first stage comes first
  };
  std::vector<Shared> shared;  ///< of all ranks

  /// Gradient groups (zero/grad_sync.h): one per chunk, the last chunk first, followed by a deferred group for each
  /// shared parameter, so that the ranks of all its stages partition it alike.
  [[nodiscard]] int gradient_group_of(int chunk) const { return static_cast<int>(mine.size()) - 1 - chunk; }
  [[nodiscard]] int deferred_group(std::size_t of = 0) const { return static_cast<int>(mine.size() + of); }
};

struct StageChoice {
  pipeline::Plan pipeline;
  std::vector<std::int64_t> given{};  ///< number of blocks of each stage; empty: partition by `costs`
  std::vector<double> costs{};        ///< of each block (pipeline/block_costs.h); empty: all equal
};

/// @throws ConfigError for a partition that does not fit the model
StagePlan plan_stages(nn::Model& model, const StageChoice& choice, int ranks, int rank);
/// Keeps this rank's blocks of a model that has no memory yet; memory that a user's own modules allocated for other
/// stages is freed.
void keep_stages(nn::Model& model, const StagePlan& plan, const std::string& axis);
/// Maps a parameter's name to its gradient group (zero/grad_sync.h).
std::function<int(const std::string&)> gradient_groups(nn::Model& model, const StagePlan& plan);

}  // namespace trireme::plugins
