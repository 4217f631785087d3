#include "apps/launcher/run_end.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "apps/report.h"
#include "core/base/repeated_signal.h"

namespace trireme::apps {

constexpr int kForReader = 1000;  // milliseconds

bool asks_to_stop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGUSR1; }

/// Ends a line with ^C or a progress bar.
static const char* line_end() { return isatty(STDERR_FILENO) != 0 ? "\n" : ""; }

std::string stopping_line() { return line_end() + std::string(kStoppingLine); }

int report_stop(int signal, const std::string& meaning) {
  pollfd stream{STDERR_FILENO, POLLOUT, 0};
  if (poll(&stream, 1, kForReader) > 0) {
    std::fputs(line_end(), stderr);
    say_error(fmt::format("stopped by signal {} ({}){}", signal, strsignal(signal), meaning));
  }
  return 128 + signal;
}

}  // namespace trireme::apps
