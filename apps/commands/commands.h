// The commands, one per source file. Each returns the exit code or throws an Error.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

int run(const TrainCommand& command);
int run(const EvalCommand& command);
int run(const PredictCommand& command);
int run(const GenerateCommand& command);
int run(const RecordCommand& command);
int run(const CheckCommand& command);
int run(const LeavesCommand& command);
int run(const PluginsCommand& command);
int run(const ConfigCommand& command);
int run(const EnvCommand& command);

}  // namespace trireme::apps
