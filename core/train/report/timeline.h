// Timeline: writes some steps of a run as a Chrome trace, for chrome://tracing or ui.perfetto.dev. It shows what every
// rank computed, sent and waited for, on one clock.
#pragma once

#include "core/train/callback.h"

namespace trireme::train {

/// Traces three steps after two of warm-up, or what the run has of them, and writes RUN/timeline.json. `columns`: the
/// width of a pipeline's chart on the screen.
std::shared_ptr<RunCallback> timeline(int columns);

}  // namespace trireme::train
