#include "core/comm/flight/termination.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "core/comm/flight/lost_peer.h"
#include "core/comm/flight/recorder.h"

namespace trireme::comm::flight {
namespace {

std::atomic<int> wake_reporter{-1};  // write end of the pipe to the thread below; -1: there is none

void end_now(int number) {
  signal(number, SIG_DFL);
  raise(number);
}

// Only a few functions may be called here, so a thread does the rest.
void on_term(int number) {
  note_signal(number);
  const char byte = 0;
  if (const int to = wake_reporter.load(); to < 0 || write(to, &byte, 1) != 1) end_now(number);
}

/// Waits for the signal; prints the table if another rank's death is its cause.
void report_then_end(int from, const LaunchInfo& info) {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  char byte = 0;
  while (::read(from, &byte, 1) < 0) continue;
  if (job_is_dying()) report_death("trireme", info);
  end_now(SIGTERM);
}

}  // namespace

void handle_termination(const LaunchInfo& info) {
  struct sigaction before {};
  if (folder().empty() || sigaction(SIGTERM, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  int ends[2];
  const bool reports = info.launcher != Launcher::launch && info.launcher != Launcher::spawn && !has_parent();
  if (reports && pipe2(ends, O_CLOEXEC) == 0) {
    wake_reporter = ends[1];
    std::thread(report_then_end, ends[0], info).detach();
  }
  signal(SIGTERM, on_term);
}

}  // namespace trireme::comm::flight
