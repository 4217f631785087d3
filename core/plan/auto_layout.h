// What a file leaves to the plan: parallel.plugin = "auto", train.micro_batch = "auto".
#pragma once

#include <string>

#include "core/base/log.h"
#include "core/comm/world.h"
#include "core/setup/run_config.h"

namespace trireme::plan {

bool is_auto(const train::RunConfig& config);

struct AutoLayout {
  train::RunConfig config;
  std::string said{};  ///< what was chosen, for the user
};

/// The file with what the plan chooses for these ranks (search.h), on the machine of [run] machine, or one estimated
/// from data sheets. Keys of [train] and [parallel] that the file sets stay. A run folder that goes on keeps the choice
/// that it has in config.toml, for as many ranks. Rank 0 opens the data and searches for at most 10 seconds, while the
/// others wait. Collective. @pre is_auto(config)
/// @throws ConfigError on every rank when no layout can run or fits
AutoLayout with_auto_layout(const train::RunConfig& config, comm::World& world, const Log& log);

struct Unsearched {
  train::RunConfig config;
  int ranks = 1;
};
/// A training that can be checked without a search: that of the run folder, which goes on; else that of one rank.
Unsearched without_search(train::RunConfig config, int ranks);

}  // namespace trireme::plan
