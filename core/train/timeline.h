// Timeline: writes some steps of a run as a Chrome trace, for chrome://tracing or ui.perfetto.dev. It shows what every
// rank computed, sent and waited for, on one clock.
#pragma once

#include <cstdint>
#include <string>

#include "core/train/callback.h"

namespace trireme::train {

class Timeline final : public RunCallback {
 public:
  /// Traces three steps after two of warm-up, or what a run of `steps` steps has of them. `path`: the file that rank 0
  /// writes. `columns`: the width of a pipeline's chart on the console.
  Timeline(comm::Mesh& mesh, std::string path, std::int64_t steps, int columns);

  void on_step_begin(RunContext& run) override;
  /// After the last traced step the file is written. Collective.
  void on_step_end(RunContext& run, const StepEnd& step) override;

 private:
  void write();
  comm::Mesh& mesh_;
  std::string path_;
  std::int64_t first_, count_;  ///< the traced steps, counted from the start of this run
  int columns_;
};

}  // namespace trireme::train
