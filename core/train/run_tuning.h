// The tuning of a run, by [optimize] of its file: before the first step, on its batch (core/tune/optimize.h).
#pragma once

#include "core/train/callback.h"
#include "core/tune/tuning.h"

namespace trireme::train {

/// Tunes before a step of this batch, or selects what this run or an earlier tuning of the same model, layout and
/// machine has chosen; says so in a line, and writes RUN/tuning.json. Weights, optimizer, random state and the position
/// in the data are as before. A signal ends it, and with it the run, before its first step. Does nothing with tune =
/// "off". Collective.
void tune_run(RunContext& run, const data::StepBatch& batch);

/// The same for steps that are only measured, without a limit but budget_s. Returns what it chose, as a line; "":
/// nothing is tuned. `config_toml`: config_toml_of(setup), before its plugin was taken. Collective.
std::string tune_measured(const RunSetup& setup, const std::string& config_toml, Booster& booster, Boosted& run,
                          const data::StepBatch& batch);

/// Tunes the training on its first batch, whatever [optimize] tune says, and keeps the result in the user's cache. The
/// work of `trireme tune`. Collective. @throws Error of any kind
tune::Tuning tune_alone(RunSetup setup, comm::World& world);

}  // namespace trireme::train
