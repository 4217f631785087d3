// What the front says about a rank that a signal ended, or about a signal that ended the run.
#pragma once

#include <string>

namespace trireme::apps {

enum class Ranks {
  of_trireme,      ///< trireme-worker, which reports its own errors
  of_any_program,  ///< a program that `trireme launch` starts
};

/// "rank 2 was killed by signal 9, most often because ...": what happened to `who`, and the remedy.
std::string ended_by_signal(const std::string& who, int signal, Ranks ranks);

/// Reports that a signal to this process ended the run. Returns the exit code.
int report_stop(int signal);

}  // namespace trireme::apps
