#include "core/train/stop_signals.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <ctime>

#include "core/base/repeated_signal.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/stopping.h"
#include "core/comm/flight/termination.h"

namespace trireme::train {
namespace {

// A handler can only use static variables, and call what is async-signal-safe.
volatile sig_atomic_t first_signal = 0;
volatile sig_atomic_t grace = 0;  // seconds
timespec first_time{};

void on_stop_signal(int number) {
  const int error = errno;
  const bool is_examined = number == SIGTERM && comm::flight::end_if_dying();
  if (first_signal == 0) {
    clock_gettime(CLOCK_MONOTONIC, &first_time);
    first_signal = number;
    if (grace > 0) alarm(static_cast<unsigned>(grace));
    if (!is_examined) comm::flight::say_request();
  } else if (is_second_request(first_time)) {
    comm::flight::note_signal(number);
    comm::flight::say_end(number, 0);
    _exit(128 + number);
  }
  errno = error;
}

void on_grace_over(int) {
  comm::flight::note_signal(first_signal);
  comm::flight::say_end(first_signal, grace);
  _exit(128 + first_signal);
}

void handle(int number, void (*handler)(int), struct sigaction& before) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // nohup, or a shell's background job
}

}  // namespace

StopSignals::StopSignals(unsigned grace_seconds) {
  first_signal = 0;
  grace = static_cast<sig_atomic_t>(grace_seconds);
  std::size_t i = 0;
  for (const int number : kSignals) handle(number, on_stop_signal, before_[i++]);
  handle(SIGALRM, on_grace_over, before_[i]);
}

StopSignals::~StopSignals() {
  comm::flight::end_stops();
  alarm(0);
  std::size_t i = 0;
  for (const int number : kSignals) sigaction(number, &before_[i++], nullptr);
  sigaction(SIGALRM, &before_[i], nullptr);
}

int StopSignals::received() { return first_signal; }

}  // namespace trireme::train
