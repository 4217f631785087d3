// The sections of a file that plugins read: [plugin.NAME], and keys of [parallel] and [train] that they share.
//
// A key of [parallel] (tp, zero) is an abbreviation of one in the plugin's section (tp_size, zero_stage). A key that
// the plugin's section shares with [train] can be set in either place and applies to both.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/booster/plugin.h"
#include "core/setup/run_config.h"

namespace trireme::train {

/// Keys of [parallel] and the keys of [plugin.hybrid_parallel] that they abbreviate: {"tp", "tp_size"}.
const std::map<std::string, std::string>& short_keys();

/// The configured plugin of the run. The shared keys are resolved: in `config`, both places have the value. Sections of
/// other plugins are checked, because a typo in a name or key would otherwise be ignored silently; a file that names
/// its plugin may contain them. @throws ConfigError, also when two places have different values
std::unique_ptr<Plugin> configured_plugin(RunConfig& config);

/// What the plugin's checks read. `section` refers to `config`.
RunSettings settings_of(const RunConfig& config, const Plugin& plugin, int world_size);

}  // namespace trireme::train
