// How ranks ended, and what is said when a signal ended them.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::apps {

/// How the ranks ended.
struct RunEnd {
  int code = 0;
  std::string death{};  ///< in a line: ranks have died or lost each other, so that they may be started again; else ""
  std::int64_t saved_step = -1;  ///< of the newest checkpoint that a training has saved; -1: none
  /// The microbatch with which a training whose memory ran out may fit; 0: none did, or it cannot be smaller.
  std::int64_t smaller_micro_batch = 0;
  std::string trained_in{};  ///< the folder in which a training has trained; "": none
  bool stopped = false;      ///< a signal to this process asked them to stop, or was to end them
};

/// What the first SIGINT or SIGTERM to this process does. The second one ends the ranks in any case.
enum class OnStop {
  end,  ///< ends the ranks
  ask,  ///< the ranks are a training: they get SIGUSR1, finish their step, save and end
};

/// Whether this signal asks a training to stop.
bool asks_to_stop(int signal);

/// Says that a training was asked to stop.
std::string stopping_line();

/// Reports that a signal to this process ended the run, and what that means: "" or "; ...". Returns the exit code. Does
/// not wait long for whoever reads it.
int report_stop(int signal, const std::string& meaning = "");

}  // namespace trireme::apps
