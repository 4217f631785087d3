// One run of ranks on this machine: starts them, forwards their output and the signals to this process, and ends all of
// them when one fails. Says, once, why a run has failed.
#pragma once

#include <chrono>
#include <string>

#include "core/launch/cause.h"
#include "core/launch/event_loop.h"
#include "core/launch/process.h"
#include "core/launch/rank_report.h"

namespace trireme::apps {

/// What the first SIGINT or SIGTERM to this process does. The second one ends the ranks in any case.
enum class OnStop {
  end,  ///< ends the ranks
  ask,  ///< the ranks are a training: they get SIGUSR1, finish their step, save and end
};

struct StartOptions {
  ranks::Program program{};
  int ranks = 1;
  bool tag_output = false;
  ranks::Ranks kind = ranks::Ranks::of_any_program;
  std::chrono::seconds grace{15};  ///< that ranks of a program have to end after a signal
  OnStop on_stop = OnStop::end;
};

/// How the ranks ended.
struct RunEnd {
  int code = 0;
  /// In a line: why ranks may be started again: they were killed or lost each other, or a program failed; else "".
  std::string death{};
  bool stopped = false;        ///< a signal to this process asked them to stop, or was to end them
  ranks::RankReport report{};  ///< what all ranks have told about their training
};

/// Whether this signal asks a training to stop.
bool asks_to_stop(int signal);

/// How often deadlines of processes are looked at, in milliseconds.
inline constexpr int kLook = 100;

/// Runs the ranks until they end. If one fails, the others get SIGTERM, and SIGKILL if they still run after seconds.
/// The exit code is that of the rank whose failure is the cause (128 + n after signal n), or 128 + n if signal n to
/// this process ended the run; that of a communication error if ranks of a world were killed or lost each other. One
/// message says why. @throws ConfigError when the program cannot be executed
RunEnd run_until_end(ranks::EventLoop& loop, const ranks::SignalQueue& signals, const StartOptions& options);

}  // namespace trireme::apps
