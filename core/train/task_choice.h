// The task of a run: that of the file, else that of the loaded weights if it fits the data, else the model's own.
#pragma once

#include <string>

#include "core/train/prepare.h"

namespace trireme::train {

/// The task's name: of the file, else the usual one for the weights, the model and the data, which are opened.
/// @throws ConfigError
const std::string& name_task(Prepared& prepared);
/// Makes that task, and chooses its metrics. @throws ConfigError, DataError
void choose_task(Prepared& prepared);
/// For an evaluation. @throws ConfigError when the config.json of the weights says that they are for another task
void check_problem(const Prepared& prepared);

}  // namespace trireme::train
