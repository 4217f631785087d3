#include "apps/front/run_end.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "apps/report.h"
#include "core/base/repeated_signal.h"

namespace trireme::apps {

bool asks_to_stop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGUSR1; }

void say_stopping() {
  if (isatty(STDERR_FILENO) != 0) (void)!write(STDERR_FILENO, "\n", 1);  // ends a line with ^C or a progress bar
  (void)!write(STDERR_FILENO, kStoppingLine.data(), kStoppingLine.size());
}

int report_stop(int signal, const std::string& meaning) {
  if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);  // ends a line with ^C or a progress bar
  say_error(fmt::format("stopped by signal {} ({}){}", signal, strsignal(signal), meaning));
  return 128 + signal;
}

}  // namespace trireme::apps
