// The search (search.h) for the layout of a training, and what all plans of a file need.
#pragma once

#include "core/plan/machine.h"
#include "core/plan/search.h"
#include "core/setup/run_config.h"
#include "core/setup/run_setup.h"

namespace trireme::plan {

/// That of [run] machine; else one with rates from data sheets, of the kind of device on which the run would compute
/// here. @throws ConfigError when there is none
Machine machine_of(const train::RunConfig& config);

/// Rank 0 of so many ranks on such hosts.
LaunchInfo planned_launch(const Machine& machine, std::int64_t ranks);

/// Prepares a training to be planned on such a device: this process needs no GPU. `opened`: a training with the same
/// data, which is then not opened again; null: none. @throws ConfigError, DataError, CheckpointError
train::RunSetup prepare_to_plan(train::RunConfig config, const Machine& machine, const LaunchInfo& launch,
                                const train::RunSetup* opened = nullptr);

/// The configuration read again from a changed file. @throws ConfigError
train::RunConfig with_root(const train::RunConfig& config, config::Table root);
/// The file with these settings. With dp or a plugin, they are in place of its [parallel] and [plugin.*].
/// @throws ConfigError
train::RunConfig with_settings(const train::RunConfig& config, const Settings& settings);

/// The keys of the file's [parallel] beside the plugin.
Settings set_in_parallel(const config::Table& root);

/// Forecasts layouts of the plugin hybrid_parallel, which has all that the others have. What depends on the training
/// is set in `options`; a layout that cannot run has the message of its error.
/// @pre MetaKernels exist @throws ConfigError, DataError, CheckpointError for what is wrong in every layout
SearchResult search_layouts(const train::RunConfig& config, const Machine& machine, SearchOptions options);

}  // namespace trireme::plan
