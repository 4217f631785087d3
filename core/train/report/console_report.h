// ConsoleReport: what `trireme train` shows: a header, a progress bar, a line for each epoch, the closing lines.
#pragma once

#include "core/train/callback.h"
#include "core/train/report/console.h"

namespace trireme::train {

std::shared_ptr<RunCallback> console_report(Terminal terminal, bool active);

}  // namespace trireme::train
