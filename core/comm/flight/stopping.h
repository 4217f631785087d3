// What is said when a signal stops a training: that the request has arrived, and, if the training ends before it has
// saved, what is lost. Each is said once: by the parent of the ranks where it is ours (apps/launcher), else by one
// rank.
#pragma once

#include <csignal>
#include <string>

#include "core/launch/launch_info.h"

namespace trireme::comm::flight {

/// From now on, signals ask the training of this process to save and stop.
void begin_stops(const LaunchInfo& info);
/// No longer.
void end_stops();
/// What is lost if the training ends now, and what it can go on from.
void note_unsaved(const std::string& text);
/// The training has stopped as it was asked to, and says itself what was saved.
void note_stopped();

// For handlers of signals.

/// Says that the first request has arrived.
void say_request();
/// Says that signal `number` ends the process, and what is lost. `late`: because the training could not save within so
/// many seconds; 0: because of a second signal.
void say_end(int number, int late);

}  // namespace trireme::comm::flight
