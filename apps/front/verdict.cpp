#include "apps/front/verdict.h"

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

std::string ended_by_signal(const std::string& who, int signal, Ranks ranks, int size) {
  const bool ours = ranks == Ranks::of_trireme;
  const auto less_memory = [&]() -> std::string {
    if (size == 1) return ours ? "a smaller train.micro_batch, or train.recompute = true" : "smaller batches";
    return ours ? "fewer ranks, a smaller train.micro_batch, or train.recompute = true"
                : "fewer ranks, or smaller batches";
  };
  switch (signal) {
    case SIGKILL:
      return fmt::format("{} was killed by signal 9, most often because the machine ran out of memory: use {}", who,
                         less_memory());
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      return fmt::format("{} crashed with signal {} ({}){}", who, signal, strsignal(signal),
                         ours ? ". This is a bug in Trireme or in a library that it uses; please report it with the "
                                "output of `trireme env`"
                              : "");
    default:
      return fmt::format("{} was ended by signal {} ({})", who, signal, strsignal(signal));
  }
}

int report_stop(int signal, const std::string& meaning) {
  if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);  // ends a line with ^C or a progress bar
  say_error(fmt::format("stopped by signal {} ({}){}", signal, strsignal(signal), meaning));
  return 128 + signal;
}

}  // namespace trireme::apps
