// trireme runs: lists the runs of a folder.
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Prints a row for each run, the newest first. @throws ConfigError when there is none
int list_runs(const RunsCommand& command);

}  // namespace trireme::apps
