// The commands, one per source file. Each returns the exit code or throws an Error.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// The exit code of `checkpoint diff` when it finds a difference.
inline constexpr int kDiffers = 8;

int run(const TrainCommand& command);
int run(const EvalCommand& command);
int run(const PredictCommand& command);
int run(const GenerateCommand& command);
int run(const TokenizeCommand& command);
int run(const RecordCommand& command);
int run(const CheckCommand& command);
int run(const MeasureCommand& command);
int run(const TuneCommand& command);
int run(const PlanCommand& command);
int run(const LeavesCommand& command);
int run(const PluginsCommand& command);
int run(const ConfigCommand& command);
int run(const EnvCommand& command);
int run(const CheckpointListCommand& command);
int run(const CheckpointInspectCommand& command);
int run(const CheckpointVerifyCommand& command);
int run(const CheckpointExportCommand& command);
int run(const CheckpointDiffCommand& command);
int run(const InspectCommand& command);

}  // namespace trireme::apps
