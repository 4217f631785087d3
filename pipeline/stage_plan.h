// Stage plan: which blocks of a model each stage of a pipeline has, which of them this rank runs, and which parameters
// several stages share, from the model and the plugin's options. A stage is a run of consecutive blocks. There are
// ranks x model chunks stages, in forward order. The schedule decides which rank runs which stage (core/pipeline).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/pipeline/schedules.h"

namespace trireme::nn {
class Model;
}

namespace trireme::pipeline {

/// A half-open range of blocks.
struct Stage {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Every stage has blocks / stages blocks, and the middle stages one more until the remainder is used up, because the
/// first and the last stage also have the embeddings and the head. 12 blocks over 5 stages: 2, 3, 3, 2, 2. @throws
/// ConfigError when there are fewer blocks than stages
std::vector<Stage> partition_uniform(std::int64_t blocks, int stages);

/// Minimizes the cost of the most expensive stage, then the sum of the squares of the stages' costs; among equals, the
/// first stages are the longer ones. `costs`: of each block, in any unit, 0 or more. O(stages x blocks^2).
/// @throws ConfigError when there are fewer blocks than stages
std::vector<Stage> partition_by_cost(const std::vector<double>& costs, int stages);

/// The partition that the user gives. @throws ConfigError with the remedy when a stage has no block, or the sum is not
/// `blocks`
std::vector<Stage> partition_given(const std::vector<std::int64_t>& sizes, std::int64_t blocks, int stages);

struct StagePlan {
  Plan pipeline;
  std::vector<Stage> stages;  ///< of all ranks, in forward order
  std::vector<Stage> mine;    ///< of each of this rank's chunks
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
  Plan pipeline;
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

}  // namespace trireme::pipeline
