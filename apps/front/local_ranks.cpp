#include "apps/front/local_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "apps/front/programs.h"
#include "core/base/error.h"

namespace trireme::apps {
namespace {

constexpr std::chrono::seconds kAfterKill{3};

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw ConfigError(fmt::format("cannot make a pipe: {}; start fewer ranks, or allow more open files (ulimit -n)",
                                    std::strerror(errno)));
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    if (read_end >= 0) close(read_end);
    close_write_end();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write_end() {
    if (write_end >= 0) close(std::exchange(write_end, -1));
  }
};

struct NewProcess {
  int output = -1, error = -1, store_socket = -1;
  int failure = -1;  ///< gets errno when the program cannot be executed; closed by exec()
  pid_t parent = 0;
};

[[noreturn]] void become_rank(const char* path, char* const* command, char* const* environment,
                              const NewProcess& process) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != process.parent) _exit(1);
  setpgid(0, 0);
  if (const int nothing = open("/dev/null", O_RDONLY); nothing >= 0) dup2(nothing, STDIN_FILENO);
  dup2(process.output, STDOUT_FILENO);
  dup2(process.error, STDERR_FILENO);
  if (process.store_socket >= 0) fcntl(process.store_socket, F_SETFD, 0);
  signal(SIGPIPE, SIG_DFL);
  SignalQueue::restore();
  execvpe(path, command, environment);  // also runs a script without an interpreter's line
  const int error = errno;
  (void)!write(process.failure, &error, sizeof error);
  _exit(127);
}

}  // namespace

int RankEnd::signal() const { return WIFSIGNALED(status) ? WTERMSIG(status) : 0; }

int RankEnd::code() const { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::string find_program(const std::string& name) {
  if (name.find('/') == std::string::npos) return on_path(name);
  return is_program(name) ? name : "";
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

LocalRanks::LocalRanks(EventLoop& loop, std::vector<Program> programs, int store_socket, RankEvents events)
    : loop_(loop), events_(std::move(events)), ranks_(programs.size()) {
  try {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].rank = static_cast<int>(i);
      start(ranks_[i], std::move(programs[i]), i == 0 ? store_socket : -1);
    }
  } catch (...) {
    kill_all();
    throw;
  }
}

void LocalRanks::start(Rank& rank, Program program, int store_socket) {
  const auto path = find_program(program.words.at(0));
  if (path.empty()) throw ConfigError(fmt::format("{}: no such program", program.words[0]));
  const auto command = pointers(program.words), variables = pointers(program.environment);
  Pipe output, error, failure;
  const NewProcess made{output.write_end, error.write_end, store_socket, failure.write_end, getpid()};
  rank.process = fork();
  if (rank.process == 0) become_rank(path.c_str(), command.data(), variables.data(), made);
  if (rank.process < 0)
    throw ConfigError(fmt::format("cannot start rank {}: {}; start fewer ranks", rank.rank, std::strerror(errno)));
  setpgid(rank.process, rank.process);  // in both processes, so that a signal finds the group
  int reason = 0;
  failure.close_write_end();
  if (read(failure.read_end, &reason, sizeof reason) == sizeof reason)
    throw ConfigError(fmt::format("{}: cannot be executed: {}", program.words[0], std::strerror(reason)));
  Pipe* const pipes[] = {&output, &error};
  for (int i = 0; i < 2; ++i) {
    rank.descriptors[i] = std::exchange(pipes[i]->read_end, -1);
    fcntl(rank.descriptors[i], F_SETFL, O_NONBLOCK);
    loop_.watch(rank.descriptors[i], [this, &rank, i] { read_output(rank, i); });
  }
}

LocalRanks::~LocalRanks() {
  kill_all();
  prctl(PR_SET_CHILD_SUBREAPER, 0);  // of this process's next ranks, init gets what they leave behind
}

void LocalRanks::kill_all() {
  if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process > 0 || rank.orphans > 0; }))
    send(SIGKILL);
  // One that waits for a device or a disk for good does not end; this process is not to wait for it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  for (auto& rank : ranks_) {
    if (const auto process = std::exchange(rank.process, -1); process > 0) {
      while (waitpid(process, nullptr, WNOHANG) == 0 && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (int& descriptor : rank.descriptors) {
      if (descriptor < 0) continue;
      loop_.forget(descriptor);
      close(std::exchange(descriptor, -1));
    }
  }
}

void LocalRanks::send(int signal) {
  // Processes that a rank has started end with it, but a notice is for the rank alone.
  const bool notice = signal == SIGUSR1 || signal == SIGUSR2;
  if (!notice && signal != SIGTSTP && signal != SIGCONT && !std::exchange(ending_, true))
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // what ranks leave behind from now on is waited for here
  for (auto& rank : ranks_) {
    if (rank.process > 0) kill(notice ? rank.process : -rank.process, signal);
    if (rank.orphans > 0 && !notice) kill(-rank.orphans, signal);
    if (signal == SIGKILL) rank.orphans = -1;
  }
}

void LocalRanks::end(int signal, std::chrono::seconds patience) {
  send(signal);
  if (!deadline_) expect_end(patience);
}

void LocalRanks::expect_end(std::chrono::seconds patience) {
  patience_ = patience;
  deadline_ = Clock::now() + patience;
}

void LocalRanks::check_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  gave_up_ = killed_after_.has_value();
  if (gave_up_) return;
  send(SIGKILL);
  killed_after_ = patience_;
  deadline_ = Clock::now() + kAfterKill;
}

bool LocalRanks::busy() const {
  return !gave_up_ && std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.process > 0 || (rank.waits_for_orphans && rank.orphans > 0 && kill(-rank.orphans, 0) == 0);
  });
}

void LocalRanks::collect() {
  for (auto& rank : ranks_) {
    int status = 0;
    while (rank.orphans > 0 && waitpid(-rank.orphans, nullptr, WNOHANG) > 0) continue;
    if (rank.orphans > 0 && kill(-rank.orphans, 0) != 0) rank.orphans = -1;
    if (rank.process <= 0 || waitpid(rank.process, &status, WNOHANG) != rank.process) continue;
    // What it wrote is read before its end is reported. Processes that it left behind may still hold the pipes.
    for (int i = 0; i < 2; ++i) {
      read_output(rank, i);
      close_output(rank, i);
    }
    // No new group gets the number while a process is in this one.
    const pid_t group = std::exchange(rank.process, -1);
    while (waitpid(-group, nullptr, WNOHANG) > 0) continue;  // those that ended with it send no signal any more
    rank.orphans = kill(-group, 0) == 0 ? group : -1;
    rank.waits_for_orphans = ending_;  // otherwise init has got them, and in a container it may not reap them
    events_.ended({rank.rank, status});
    if (!ending_) rank.orphans = -1;  // a run that goes on leaves them alone
  }
}

void LocalRanks::read_output(Rank& rank, int index) {
  std::array<char, 65536> text{};
  // At most a few parts, so that one rank's output does not delay the others'.
  for (int part = 0; part < 4 && rank.descriptors[index] >= 0; ++part) {
    const auto length = read(rank.descriptors[index], text.data(), text.size());
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length <= 0) return close_output(rank, index);
    events_.output(rank.rank, index + 1, std::string_view(text.data(), static_cast<std::size_t>(length)));
  }
}

void LocalRanks::close_output(Rank& rank, int index) {
  if (rank.descriptors[index] < 0) return;
  loop_.forget(rank.descriptors[index]);
  close(std::exchange(rank.descriptors[index], -1));
  events_.output(rank.rank, index + 1, "");
}

}  // namespace trireme::apps
