// trireme plot: draws runs, as a page or one chart as SVG.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Writes the file and prints one line about it. An existing file is replaced, as its name ends in .html or .svg.
/// @throws ConfigError for folders without runs, an unknown chart, or a file in a run's folder; CheckpointError when
/// the file cannot be written
int plot_runs(const PlotCommand& command);

}  // namespace trireme::apps
