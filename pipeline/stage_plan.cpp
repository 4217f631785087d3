#include "pipeline/stage_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/parameters.h"

namespace trireme::pipeline {
namespace {

void check_count(std::int64_t blocks, int stages) {
  TRIREME_CHECK(stages >= 1, "a pipeline cannot have {} stages", stages);
  if (blocks < stages)
    throw ConfigError(
        fmt::format("{} blocks cannot be split into {} stages of at least one block; choose at most {} stages", blocks,
                    stages, blocks));
}

std::vector<Stage> from_sizes(const std::vector<std::int64_t>& sizes) {
  std::vector<Stage> stages;
  std::int64_t at = 0;
  for (const auto size : sizes) {
    stages.push_back({at, at + size});
    at += size;
  }
  return stages;
}

/// The cost of a partition of the first blocks: its most expensive stage, then the sum of squares of its stages' costs.
struct Worth {
  double dearest = std::numeric_limits<double>::infinity(), squares = 0;
  friend bool operator<(const Worth& a, const Worth& b) {
    return a.dearest != b.dearest ? a.dearest < b.dearest : a.squares < b.squares;
  }
};

std::vector<Stage> partition(nn::Model& model, const StageChoice& choice, int stages) {
  const auto blocks = static_cast<std::int64_t>(model.blocks().size());
  if (!choice.given.empty()) return partition_given(choice.given, blocks, stages);
  return choice.costs.empty() ? partition_uniform(blocks, stages) : partition_by_cost(choice.costs, stages);
}

}  // namespace

std::vector<Stage> partition_uniform(std::int64_t blocks, int stages) {
  check_count(blocks, stages);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(stages), blocks / stages);
  const auto more = static_cast<std::size_t>(blocks % stages), first = (sizes.size() - more) / 2;
  for (std::size_t s = first; s < first + more; ++s) ++sizes[s];
  return from_sizes(sizes);
}

// Dynamic programming over the number of stages: best[k] is the best partition of the first k blocks into s stages.
std::vector<Stage> partition_by_cost(const std::vector<double>& costs, int stages) {
  const auto n = costs.size();
  check_count(static_cast<std::int64_t>(n), stages);
  std::vector<double> before(n + 1, 0);  // prefix sums
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  std::vector<Worth> best(n + 1);
  best[0] = {0, 0};
  std::vector<std::vector<std::size_t>> cut;  // cut[s][k]: where stage s begins if it ends at block k
  for (int s = 0; s < stages; ++s) {
    std::vector<Worth> next(n + 1);
    auto& begins = cut.emplace_back(n + 1, 0);
    for (std::size_t k = 1; k <= n; ++k)
      for (std::size_t begin = 0; begin < k; ++begin) {
        const double cost = before[k] - before[begin];
        const Worth worth{std::max(best[begin].dearest, cost), best[begin].squares + cost * cost};
        if (!(next[k] < worth)) {  // among equals the latest cut, which makes the earlier stages longer
          next[k] = worth;
          begins[k] = begin;
        }
      }
    best = std::move(next);
  }
  std::vector<std::int64_t> sizes;
  for (std::size_t s = cut.size(), k = n; s-- > 0; k = cut[s][k])
    sizes.push_back(static_cast<std::int64_t>(k - cut[s][k]));
  std::reverse(sizes.begin(), sizes.end());
  return from_sizes(sizes);
}

std::vector<Stage> partition_given(const std::vector<std::int64_t>& sizes, std::int64_t blocks, int stages) {
  TRIREME_CHECK(stages >= 1, "a pipeline cannot have {} stages", stages);
  if (sizes.size() != static_cast<std::size_t>(stages))
    throw ConfigError(fmt::format("has {} numbers for {} stages; give one per stage", sizes.size(), stages));
  for (const auto size : sizes)
    if (size < 1) throw ConfigError(fmt::format("a stage cannot have {} blocks; each needs at least one", size));
  const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (sum != blocks)
    throw ConfigError(
        fmt::format("[{}] add up to {} blocks, but the model has {}", fmt::join(sizes, ", "), sum, blocks));
  return from_sizes(sizes);
}

StagePlan plan_stages(nn::Model& model, const StageChoice& choice, int ranks, int rank) {
  // The location of the stages does not depend on the number of microbatches.
  const auto schedule = make_schedule(choice.pipeline, ranks, 1);
  StagePlan plan{
      .pipeline = choice.pipeline, .stages = partition(model, choice, schedule.stages()), .mine = {}, .shared = {}};
  for (int chunk = 0; chunk < schedule.chunks; ++chunk)
    plan.mine.push_back(plan.stages[static_cast<std::size_t>(schedule.stage_of(rank, chunk))]);
  for (const auto& [name, blocks] : nn::users(model)) {
    std::vector<int> stages, holders;
    for (const auto block : blocks) {
      const auto at = std::find_if(plan.stages.begin(), plan.stages.end(),
                                   [&](const auto& stage) { return static_cast<std::int64_t>(block) < stage.end; });
      const auto stage = static_cast<int>(at - plan.stages.begin());
      if (std::find(stages.begin(), stages.end(), stage) == stages.end()) stages.push_back(stage);
      const int holder = schedule.location_of(stage).rank;
      if (std::find(holders.begin(), holders.end(), holder) == holders.end()) holders.push_back(holder);
    }
    if (stages.size() > 1) plan.shared.push_back({name, std::move(holders)});
  }
  return plan;
}

void keep_stages(nn::Model& model, const StagePlan& plan, const std::string& axis) {
  std::vector<std::size_t> blocks;
  for (const auto& [begin, end] : plan.mine)
    for (auto block = begin; block < end; ++block) blocks.push_back(static_cast<std::size_t>(block));
  std::sort(blocks.begin(), blocks.end());
  model.keep_stage_blocks(std::move(blocks), axis);
  nn::release_remote(model);
}

std::function<int(const std::string&)> gradient_groups(nn::Model& model, const StagePlan& plan) {
  std::map<std::string, int> of;
  for (const auto& [name, blocks] : nn::users(model))
    for (std::size_t chunk = 0; chunk < plan.mine.size(); ++chunk)
      if (const auto block = static_cast<std::int64_t>(blocks.front());
          plan.mine[chunk].begin <= block && block < plan.mine[chunk].end)
        of[name] = plan.gradient_group_of(static_cast<int>(chunk));
  for (std::size_t i = 0; i < plan.shared.size(); ++i) of[plan.shared[i].name] = plan.deferred_group(i);
  return [of = std::move(of)](const std::string& name) { return of.at(name); };
}

}  // namespace trireme::pipeline
