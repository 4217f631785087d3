// What a command starts on this machine, one after the other: runs of ranks, and checks before them.
#pragma once

#include <chrono>

#include "apps/launcher/run_of_ranks.h"
#include "core/launch/event_loop.h"
#include "core/launch/process.h"

namespace trireme::apps {

/// Whether what a program prints is shown.
enum class Show { no, yes };

/// One for each command: it takes the signals to this process from its beginning to its end, so that one that comes
/// between two starts ends the command too.
class Supervisor {
 public:
  /// See run_until_end(). Starts nothing if a signal has come before.
  RunEnd run(const StartOptions& options);
  /// Runs a program that is no rank, whose output is shown or dropped: one that checks whether ranks could start.
  /// RunEnd::code is 0 when a signal that did not come from here has ended it: the ranks then report errors themselves.
  /// @throws ConfigError
  RunEnd check(const ranks::Program& program, Show output);
  /// Waits. Returns the signal that ends the command if one has come, else 0.
  int wait(std::chrono::milliseconds time);

 private:
  ranks::EventLoop loop_;
  ranks::SignalQueue signals_;
  int stop_ = 0;  ///< the signal that ends the command and came while nothing ran; 0: none
};

}  // namespace trireme::apps
