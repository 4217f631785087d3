// What a file leaves to the plan: parallel.plugin = "auto", train.micro_batch = "auto".
#pragma once

#include <string>

#include "core/launch/launch_info.h"
#include "core/setup/run_config.h"

namespace trireme::plan {

struct AutoLayout {
  train::RunConfig config;
  std::string said{};  ///< what was chosen, for the user; "": the file leaves nothing to the plan
};

/// The file with what the plan chooses for these ranks (search.h), on the machine of [run] machine, or one estimated
/// from data sheets. Keys of [train] that the file sets stay. A run folder that goes on keeps the choice that it has in
/// config.toml, for as many ranks. Ranks on hosts that are alike choose alike. @throws ConfigError when no layout can
/// run or fits
AutoLayout with_auto_layout(train::RunConfig config, const LaunchInfo& info);

}  // namespace trireme::plan
