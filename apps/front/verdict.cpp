#include "apps/front/verdict.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "apps/report.h"

namespace trireme::apps {

bool asks_to_stop(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGUSR1; }

void say_stopping() {
  constexpr std::string_view kText =
      "\nstopping: the step in progress is finished and saved; a second signal ends the run at once\n";
  const std::size_t begin = isatty(STDERR_FILENO) != 0 ? 0 : 1;  // ends a line with ^C or a progress bar
  (void)!write(STDERR_FILENO, kText.data() + begin, kText.size() - begin);
}

std::string ended_by_signal(const std::string& who, int signal, Ranks ranks) {
  const bool ours = ranks == Ranks::of_trireme;
  switch (signal) {
    case SIGKILL:
      return fmt::format(
          "{} was killed by signal 9, most often because the machine ran out of memory: use fewer ranks{}", who,
          ours ? ", a smaller train.micro_batch, or train.recompute = true" : ", or smaller batches");
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

int report_stop(int signal) {
  if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);  // ends a line with ^C or a progress bar
  say_error(fmt::format("stopped by signal {} ({})", signal, strsignal(signal)));
  return 128 + signal;
}

}  // namespace trireme::apps
