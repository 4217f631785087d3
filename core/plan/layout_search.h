// The search (search.h) for the layout of a training.
#pragma once

#include "core/plan/machine.h"
#include "core/plan/search.h"
#include "core/setup/run_config.h"
#include "core/setup/run_setup.h"

namespace trireme::plan {

/// The configuration read again from a changed file. @throws ConfigError
train::RunConfig with_root(const train::RunConfig& config, config::Table root);
/// The file with these settings. With sizes of a layout, they are in place of its [parallel] and [plugin.*].
/// @throws ConfigError
train::RunConfig with_settings(const train::RunConfig& config, const Settings& settings);

/// Forecasts layouts of the plugin hybrid_parallel, which has all that the others have. What depends on the training
/// (global_batch, keeps_microbatches) is set in `options`; a layout that cannot run has the message of its error.
/// @pre MetaKernels exist @throws ConfigError, DataError, CheckpointError for what is wrong in every layout
SearchResult search_layouts(const train::RunConfig& config, const Machine& machine, SearchOptions options);

}  // namespace trireme::plan
