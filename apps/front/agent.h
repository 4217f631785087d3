// The agent of `trireme launch` on another host: it starts ranks there and reports to the launcher.
#pragma once

namespace trireme::apps {

/// The first argument of the program that makes it an agent.
inline constexpr const char* kStartAgent = "start-agent";

/// Reads a job from standard input, starts its ranks, and writes their output and ends to standard output. Ends them
/// when standard input is closed. Returns the exit code of the agent itself, which the launcher ignores.
int run_agent();

}  // namespace trireme::apps
