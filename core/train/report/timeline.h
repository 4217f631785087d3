// Timeline: writes some steps of a run as a Chrome trace, for chrome://tracing or ui.perfetto.dev. It shows what every
// rank computed, sent and waited for, on one clock.
#pragma once

#include <cstdint>

#include "core/train/callback.h"

namespace trireme::train {

class Timeline final : public RunCallback {
 public:
  /// Traces three steps after two of warm-up, or what the run has of them, and writes RUN/timeline.json. `columns`: the
  /// width of a pipeline's chart on the screen.
  explicit Timeline(int columns) : columns_(columns) {}

  void on_start(RunContext& run) override;
  void on_step_begin(RunContext& run) override;
  /// After the last traced step the file is written. Collective.
  void on_step_end(RunContext& run, const StepEnd& step) override;

 private:
  int columns_;
  std::int64_t first_ = 0, count_ = 0;  ///< the traced steps, counted from the start of this run
};

}  // namespace trireme::train
