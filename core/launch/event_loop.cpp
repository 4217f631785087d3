#include "core/launch/event_loop.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/error.h"

namespace trireme::ranks {
namespace {

/// Without those that this process ignores (nohup, or a shell's background job): a signal that is blocked would be
/// queued all the same.
sigset_t queued_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

}  // namespace

void EventLoop::watch(int descriptor, std::function<void()> on_readable) {
  watched_[descriptor] = {POLLIN, std::move(on_readable)};
}

void EventLoop::watch_writable(int descriptor, std::function<void()> on_writable) {
  watched_[descriptor] = {POLLOUT, std::move(on_writable)};
}

void EventLoop::run_once(int milliseconds) {
  std::vector<pollfd> waiting;
  for (const auto& [descriptor, watched] : watched_) waiting.push_back({descriptor, watched.events, 0});
  if (poll(waiting.data(), waiting.size(), milliseconds) <= 0) return;
  for (const auto& each : waiting) {
    if (each.revents == 0) continue;
    const auto at = watched_.find(each.fd);  // an earlier function may have ended the watch
    if (at == watched_.end()) continue;
    const auto function = at->second.function;  // it may forget itself
    function();
  }
}

SignalQueue::SignalQueue() {
  signal(SIGCHLD, SIG_DFL);  // with an inherited SIG_IGN the exit codes of ranks would be lost
  const auto set = queued_signals();
  sigprocmask(SIG_BLOCK, &set, &before_);
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw ConfigError(fmt::format("cannot receive signals: {}", std::strerror(errno)));
}

SignalQueue::~SignalQueue() {
  while (next() != 0) continue;  // the command is at its end, which a signal no longer changes
  close(descriptor_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalQueue::next() const {
  signalfd_siginfo info{};
  return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace trireme::ranks
