#include "core/comm/flight/termination.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "core/comm/flight/failure.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/launch/parent.h"

namespace trireme::comm::flight {
namespace {

std::atomic<int> wake_reporter{-1};  // write end of the pipe to the thread below; -1: there is none

void end_now(int number) {
  signal(number, SIG_DFL);
  raise(number);
}

// What the thread below is to do.
constexpr char kEnd = 0, kEndIfDying = 1;

bool wake(char what) {
  const int to = wake_reporter.load();
  return to >= 0 && write(to, &what, 1) == 1;
}

// Only a few functions may be called here, so a thread does the rest.
void on_term(int number) {
  note_signal(number);
  if (!wake(kEnd)) end_now(number);
}

/// Waits for the signal; prints the table if another rank's death is its cause.
void report_then_end(int from, const LaunchInfo& info) {
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  for (char what = kEnd;;) {
    if (::read(from, &what, 1) < 0) continue;
    const bool dying = job_is_dying();
    if (dying) report_death("trireme", info);
    if (dying || what == kEnd) end_now(SIGTERM);
    forget_signal();
    say_request();
  }
}

}  // namespace

bool end_if_dying() {
  note_signal(SIGTERM);
  return wake(kEndIfDying);
}

void handle_termination(const LaunchInfo& info) {
  struct sigaction before {};
  if (folder().empty() || sigaction(SIGTERM, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  int ends[2];
  if (!parent::listens() && pipe2(ends, O_CLOEXEC) == 0) {
    wake_reporter = ends[1];
    std::thread(report_then_end, ends[0], info).detach();
  }
  signal(SIGTERM, on_term);
}

}  // namespace trireme::comm::flight
