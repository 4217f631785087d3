#include "apps/front/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "apps/front/mpi_noise.h"
#include "core/base/error.h"
#include "core/base/repeated_signal.h"

namespace trireme::apps {
/// Forwards an output stream of a child process to one of this process.
struct Stream {
  std::FILE* to;  ///< null: the output is dropped
  int read_end = -1, write_end = -1;
  bool used = false;  ///< some output was forwarded
  MpiNoise noise;

  Stream(std::FILE* out, MpiNoise::Of of) : to(out), noise(of) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw ConfigError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Stream() {
    close_end(read_end);
    close_end(write_end);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
  /// Forwards the available output; closes the pipe at its end.
  void pass_on() {
    std::array<char, 16384> text{};
    const auto length = read(read_end, text.data(), text.size());
    if (length < 0 && errno == EINTR) return;
    const std::string_view part(text.data(), static_cast<std::size_t>(std::max<ssize_t>(0, length)));
    forward(length > 0 ? noise.add(part) : noise.finish());
    if (length <= 0) close_end(read_end);
  }
  void forward(std::string_view text) {
    if (text.empty()) return;
    used = true;
    if (to == nullptr) return;
    std::fwrite(text.data(), 1, text.size(), to);  // output_error() reports a failure
    std::fflush(to);
  }
};

namespace {

// Signal handlers can only access static variables.
volatile sig_atomic_t child_process = 0;
volatile sig_atomic_t last_signal = 0;
volatile sig_atomic_t not_passed_on = 0;  // received while no child was waited for
volatile sig_atomic_t asks = 0;           // the child that is waited for has OnStop::ask
volatile sig_atomic_t asked = 0;          // and has been asked
volatile sig_atomic_t ending = 0;         // a signal to this process ends what it has started, or may do so
volatile sig_atomic_t acknowledged = 0;   // the user has been told that the program stops
const volatile std::int32_t* volatile takes_signals_flag = nullptr;
timespec asked_at{};
constexpr unsigned kSecondsToEnd = 15;

bool ends_all(int number) { return number != 0 && number != SIGUSR1 && number != SIGUSR2; }

void acknowledge() {
  if (acknowledged != 0 || takes_signals_flag == nullptr || *takes_signals_flag != 1) return;
  acknowledged = 1;
  say_stopping();
}

/// Asks the child to stop, or ends it if it was asked before.
void ask_to_stop() {
  if (asked == 0) {
    clock_gettime(CLOCK_MONOTONIC, &asked_at);
    asked = 1;
    acknowledge();
    kill(static_cast<pid_t>(child_process), SIGUSR1);
  } else if (is_second_request(asked_at)) {
    asked = 2;
    ending = 1;
    kill(static_cast<pid_t>(child_process), SIGTERM);
    alarm(kSecondsToEnd);
  }
}

void on_signal(int number, siginfo_t* info, void*) {
  last_signal = number;
  if (asks != 0 && asks_to_stop(number)) return ask_to_stop();
  ending = 1;
  if (number == SIGUSR1) acknowledge();  // the only one that mpirun passes on as it is
  // A key on the terminal reaches the child directly. A signal that was sent only to this process is forwarded, as is
  // the hang-up of the terminal, which only the session's first process receives.
  if (info->si_code <= 0 || number == SIGHUP || asks != 0) {
    if (child_process > 0)
      kill(static_cast<pid_t>(child_process), number);
    else
      not_passed_on = number;
  }
  if (ends_all(number)) alarm(kSecondsToEnd);
}

/// The child is in a process group of its own, which the terminal does not stop.
void on_terminal_stop(int) {
  const auto child = static_cast<pid_t>(child_process);
  if (asks != 0 && child > 0) kill(child, SIGTSTP);
  raise(SIGSTOP);
  if (asks != 0 && child > 0) kill(child, SIGCONT);
}

// An mpirun that hangs (for example on a full disk) no longer ends its ranks; if it is killed, its ranks end too.
void on_alarm(int) {
  if (child_process > 0) kill(static_cast<pid_t>(child_process), SIGKILL);
}

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

sigset_t passed_on() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kPassedOn) sigaddset(&set, number);
  return set;
}

/// Blocks the signals while it exists.
class Held {
 public:
  Held() {
    const auto set = passed_on();
    sigprocmask(SIG_BLOCK, &set, nullptr);
  }
  ~Held() {
    const auto set = passed_on();
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
};

void replace_handler(int number, const struct sigaction& action) {
  struct sigaction before {};
  sigaction(number, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // keep SIG_IGN, as set by nohup
}

void handle_signals(bool ours) {
  signal(SIGALRM, ours ? on_alarm : SIG_DFL);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  action.sa_sigaction = on_signal;
  if (!ours) action.sa_handler = SIG_DFL;
  for (const int number : kPassedOn) replace_handler(number, action);
  struct sigaction pause {};
  pause.sa_handler = ours ? on_terminal_stop : SIG_DFL;
  replace_handler(SIGTSTP, pause);
}

/// Forwards output until both streams end, or until the child has ended and they are empty: other processes may still
/// hold the write ends.
int pass_on_until_end(pid_t child, std::array<Stream, 2>& streams, const std::function<void()>& look) {
  constexpr int kLook = 100;  // milliseconds
  int status = 0;
  bool ended = false;
  while (streams[0].read_end >= 0 || streams[1].read_end >= 0) {
    std::array<pollfd, 2> waiting{};
    for (std::size_t i = 0; i < 2; ++i) waiting[i] = {streams[i].read_end, POLLIN, 0};
    const int ready = poll(waiting.data(), waiting.size(), ended ? 0 : kLook);
    for (std::size_t i = 0; ready > 0 && i < 2; ++i)
      if (waiting[i].revents != 0) streams[i].pass_on();
    if (look) look();
    if (ready > 0) continue;
    if (ended) return status;
    ended = waitpid(child, &status, WNOHANG) == child;
  }
  while (!ended && waitpid(child, &status, 0) != child)
    if (errno != EINTR) throw ConfigError(fmt::format("cannot wait for process {}: {}", child, std::strerror(errno)));
  return status;
}

[[noreturn]] void become(const std::vector<char*>& command, pid_t parent, const std::array<Stream, 2>& streams,
                         OnStop on_stop) {
  if (on_stop == OnStop::ask) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  if (const int nothing = open("/dev/null", O_RDONLY); nothing >= 0) dup2(nothing, STDIN_FILENO);
  dup2(streams[0].write_end, STDOUT_FILENO);
  dup2(streams[1].write_end, STDERR_FILENO);
  // A signal since the fork, for example from the terminal, ends this process here.
  signal(SIGPIPE, SIG_DFL);
  handle_signals(false);
  const auto set = passed_on();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  execv(command[0], command.data());
  _exit(127);
}

}  // namespace

std::vector<char*> pointers(std::vector<std::string>& command) {
  std::vector<char*> out;
  for (auto& argument : command) out.push_back(argument.data());
  out.push_back(nullptr);
  return out;
}

struct Child::Streams {
  explicit Streams(bool shown)
      : both{Stream(shown ? stdout : nullptr, MpiNoise::Of::output),
             Stream(shown ? stderr : nullptr, MpiNoise::Of::errors)} {}
  std::array<Stream, 2> both;
};

Child::Child(std::vector<std::string> command, const std::function<void()>& prepare, OnStop on_stop, Report report)
    : streams_(std::make_unique<Streams>(report == Report::yes)), on_stop_(on_stop) {
  const auto arguments = pointers(command);
  // Signals are blocked until there is a child to forward them to.
  const Held held;
  handle_signals(true);
  signal(SIGCHLD, SIG_DFL);  // with an inherited SIG_IGN the child's exit code would be lost
  if (ends_all(last_signal)) return;
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    prepare();  // in the child, so that the next child does not inherit its effects
    become(arguments, parent, streams_->both, on_stop);
  }
  if (process_ < 0) throw ConfigError(fmt::format("cannot start {}: {}", command[0], std::strerror(errno)));
  for (auto& stream : streams_->both) Stream::close_end(stream.write_end);
}

Child::~Child() = default;

void Child::kill_now() const {
  if (process_ > 0) kill(process_, SIGKILL);
}

bool Child::is_ending() const { return ending != 0; }

ChildEnd Child::wait(const std::function<void()>& look, const std::int32_t* takes_signals) {
  if (process_ < 0) return {.code = 128 + last_signal, .sent = last_signal};
  {
    const Held held;
    child_process = process_;
    asks = on_stop_ == OnStop::ask ? 1 : 0;
    asked = 0;
    acknowledged = 0;
    takes_signals_flag = takes_signals;
    if (const int number = not_passed_on; number != 0) kill(process_, number);
    not_passed_on = 0;
    // A key on the terminal, before there was a training that could save: such a child has not got it.
    if (asks != 0 && ends_all(last_signal)) kill(process_, SIGTERM);
  }
  const int status = pass_on_until_end(process_, streams_->both, look);
  alarm(0);
  asks = 0;  // first: a handler must not find it without a child
  child_process = 0;
  takes_signals_flag = nullptr;
  return {.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .by_signal = WIFSIGNALED(status),
          .sent = last_signal,
          .asked = asked == 1,
          .stopped = asked != 0 || ends_all(last_signal),
          .printed = streams_->both[0].used,
          .complained = streams_->both[1].used};
}

int ending_signal() { return ends_all(last_signal) ? last_signal : 0; }

ChildEnd run_child(std::vector<std::string> command, const std::function<void()>& prepare) {
  return Child(std::move(command), prepare).wait();
}

}  // namespace trireme::apps
