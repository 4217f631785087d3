// Partition: which blocks of a model each stage of a pipeline has. A stage is a run of blocks; stages are in forward
// order, as many as ranks x model chunks. Which rank runs which stage is the schedule's matter (pipeline/schedule).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// Half-open.
struct Stage {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Every stage has blocks / stages of them, and the stages in the middle one more each: the first and the last stage
/// have the embeddings and the head to themselves. 12 over 5: 2, 3, 3, 2, 2. @throws ConfigError: fewer blocks than
/// stages
std::vector<Stage> partition_uniform(std::int64_t blocks, int stages);

/// The dearest stage costs as little as can be; where that leaves a choice, the sum of the squares of the stages' costs
/// is least, and then the first stages are the longer ones. `costs`: of each block, any unit, 0 or more.
/// O(stages x blocks^2). @throws ConfigError: fewer blocks than stages
std::vector<Stage> partition_by_cost(const std::vector<double>& costs, int stages);

/// As a user has it. @throws ConfigError that says what fits: a stage of no block, or another sum than `blocks`
std::vector<Stage> partition_given(const std::vector<std::int64_t>& sizes, std::int64_t blocks, int stages);

}  // namespace trireme::pipeline
