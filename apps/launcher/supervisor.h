// Starts the ranks of a command on this machine, forwards their output and the signals to this process, and ends all of
// them when one fails. Says, once, why a run has failed.
#pragma once

#include <chrono>

#include "apps/launcher/run_end.h"
#include "core/launch/cause.h"
#include "core/launch/event_loop.h"
#include "core/launch/process.h"

namespace trireme::apps {

struct StartOptions {
  ranks::Program program{};
  int ranks = 1;
  bool tag_output = false;
  ranks::Ranks kind = ranks::Ranks::of_any_program;
  std::chrono::seconds grace{15};  ///< that ranks of a program have to end after a signal
  OnStop on_stop = OnStop::end;
};

/// Whether what a program prints is shown.
enum class Show { no, yes };

/// One for each command: it takes the signals to this process from its beginning to its end, so that one that comes
/// between two starts ends the command too.
class Supervisor {
 public:
  /// Runs the ranks until they end. If one fails, the others get SIGTERM, and SIGKILL if they still run after seconds.
  /// The exit code is that of the rank whose failure is the cause (128 + n after signal n), or 128 + n if signal n to
  /// this process ended the run, and for several ranks of ours that one of them has died, that of a communication
  /// error; one message says why. @throws ConfigError when the program cannot be executed
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
