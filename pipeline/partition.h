// Partition: which blocks of a model each stage of a pipeline has. A stage is a run of consecutive blocks. There are
// ranks x model chunks stages, in forward order. The schedule decides which rank runs which stage (core/pipeline).
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace trireme::pipeline
