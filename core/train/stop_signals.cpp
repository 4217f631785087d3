#include "core/train/stop_signals.h"

#include <unistd.h>

#include <cstddef>
#include <ctime>
#include <string>

#include "core/base/repeated_signal.h"
#include "core/comm/flight/recorder.h"
#include "core/comm/flight/termination.h"

namespace trireme::train {
namespace {

// A handler can only use static variables, and call what is async-signal-safe.
volatile sig_atomic_t first_signal = 0;
volatile sig_atomic_t grace = 0;  // seconds
timespec first_time{};
std::string late_text;

void on_stop_signal(int number) {
  if (number == SIGTERM) comm::flight::end_if_dying();
  if (first_signal == 0) {
    clock_gettime(CLOCK_MONOTONIC, &first_time);
    first_signal = number;
    if (grace > 0) alarm(static_cast<unsigned>(grace));
  } else if (is_second_request(first_time)) {
    comm::flight::note_signal(number);
    _exit(128 + number);
  }
}

void on_grace_over(int) {
  comm::flight::note_signal(first_signal);
  (void)!write(STDERR_FILENO, late_text.data(), late_text.size());
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
  late_text =
      "trireme: the run could not be stopped and saved within run.stop_grace_s = " + std::to_string(grace_seconds) +
      "; it ends without a checkpoint of this step\n";
  std::size_t i = 0;
  for (const int number : kSignals) handle(number, on_stop_signal, before_[i++]);
  handle(SIGALRM, on_grace_over, before_[i]);
}

StopSignals::~StopSignals() {
  alarm(0);
  std::size_t i = 0;
  for (const int number : kSignals) sigaction(number, &before_[i++], nullptr);
  sigaction(SIGALRM, &before_[i], nullptr);
}

int StopSignals::received() { return first_signal; }

}  // namespace trireme::train
