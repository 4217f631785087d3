// The options of the commands with their help texts, as CLI11 reads them. Rules about values are in command_rules.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/command_line.h"

namespace trireme::apps {

/// Everything that CLI11 writes to. Its callbacks would need globals, so parsed subcommands are evaluated later.
struct Parsed {
  TrainCommand train;
  std::string resume;
  bool fresh = false;
  EvalCommand eval;
  std::string report;
  PredictCommand predict;
  GenerateCommand generate;
  TokenizeCommand tokenize;
  VerifyCommand verify;
  RecordCommand record;
  CheckCommand check;
  BenchCommand bench;
  MeasureCommand measure;
  TuneCommand tune;
  PlanCommand plan;
  LeavesCommand leaves;
  PluginsCommand plugins;
  ConfigCommand config;
  CheckpointListCommand list;
  CheckpointInspectCommand inspect_checkpoint;
  CheckpointVerifyCommand verify_checkpoint;
  CheckpointExportCommand export_checkpoint;
  CheckpointDiffCommand diff;
  InspectCommand inspect;
  RunsCommand runs;
  TopCommand top;
  PlotCommand plot;
  LaunchCommand launch;
};

/// Adds all commands, which write to `out`.
void add_commands(CLI::App& app, Parsed& out);
/// Throws the ConfigError, with the --help that covers the command.
[[noreturn]] void refuse(const CLI::App& app, const std::string& what);
/// The command that was given, after its values are checked. @throws ConfigError, CheckpointError
Command finish(CLI::App& app, Parsed& parsed);

}  // namespace trireme::apps
