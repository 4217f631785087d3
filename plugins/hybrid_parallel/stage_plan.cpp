#include "plugins/hybrid_parallel/stage_plan.h"

#include <algorithm>
#include <map>

#include "core/nn/block.h"
#include "core/nn/parameters.h"

namespace trireme::plugins {
namespace {

std::vector<pipeline::Stage> partition(nn::Model& model, const StageChoice& choice, int stages) {
  const auto blocks = static_cast<std::int64_t>(model.blocks().size());
  if (!choice.given.empty()) return pipeline::partition_given(choice.given, blocks, stages);
  return choice.costs.empty() ? pipeline::partition_uniform(blocks, stages)
                              : pipeline::partition_by_cost(choice.costs, stages);
}

}  // namespace

StagePlan plan_stages(nn::Model& model, const StageChoice& choice, int ranks, int rank) {
  // The location of the stages does not depend on the number of microbatches.
  const auto schedule = pipeline::make_schedule(choice.pipeline, ranks, 1);
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

}  // namespace trireme::plugins
