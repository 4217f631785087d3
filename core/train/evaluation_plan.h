// The evaluations on the validation split that a training has: one at the end of each epoch and one after the last step
// (together one if they coincide), and others within an epoch every train.eval_every steps.
#pragma once

#include <cstdint>
#include <optional>

#include "core/train/run_config.h"

namespace trireme::train {

/// Their number in a whole training without an early stop. `every`: train.eval_every. @pre all are above 0
std::int64_t count_evaluations(std::int64_t total_steps, std::int64_t steps_per_epoch,
                               std::optional<std::int64_t> every);

/// Checks the keys of [train] that plan evaluations. @throws ConfigError for one that cannot take effect
void check_evaluations(const RunConfig& config, std::int64_t total_steps, std::int64_t steps_per_epoch);

}  // namespace trireme::train
