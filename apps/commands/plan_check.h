// trireme plan --check
#pragma once

#include "apps/command_line.h"

namespace trireme::apps {

/// Prints the table of errors of the forecasts of runs that have ended. @throws ConfigError for a folder without one
int check_plans(const PlanCommand& command);

}  // namespace trireme::apps
