#include "core/launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace trireme::ranks {
namespace {

/// What a new process becomes, in the form that it needs.
struct Image {
  const char* path;
  char* const* words;
  char* const* environment;
  const char* folder;
  const Inheritance& inheritance;
  pid_t parent;
};

/// Signal handlers of this process must not run in the new one, whose memory is this process's until exec().
void reset_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN || action.sa_handler == SIG_DFL)
      continue;
    action.sa_handler = SIG_DFL;
    action.sa_flags = 0;
    sigaction(number, &action, nullptr);
  }
  signal(SIGPIPE, SIG_DFL);
}

[[noreturn]] void refuse_descriptors() {
  throw ConfigError(fmt::format(
      "cannot open pipes and sockets for ranks: {}; start fewer ranks, or allow more open files (ulimit -n)",
      std::strerror(errno)));
}

/// The kept ones are in ascending order.
void close_others(const std::vector<int>& kept) {
  unsigned first = STDERR_FILENO + 1;
  for (const int descriptor : kept) {
    const auto number = static_cast<unsigned>(descriptor);
    if (first < number && close_range(first, number - 1, 0) != 0)
      for (; first < number; ++first) close(static_cast<int>(first));
    first = number + 1;
  }
  closefrom(static_cast<int>(first));
}

/// Runs in the new process, whose memory is this process's: only what is safe in a signal handler. Returns errno.
int become(const Image& image) {
  const auto& inheritance = image.inheritance;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != image.parent) _exit(1);
  if (inheritance.own_group) setpgid(0, 0);
  if (const int nothing = open("/dev/null", O_RDONLY); nothing > STDIN_FILENO) {
    dup2(nothing, STDIN_FILENO);
    close(nothing);
  }
  if (inheritance.output >= 0) dup2(inheritance.output, STDOUT_FILENO);
  if (inheritance.error >= 0) dup2(inheritance.error, STDERR_FILENO);
  for (const int descriptor : inheritance.descriptors) fcntl(descriptor, F_SETFD, 0);
  if (!inheritance.others) close_others(inheritance.descriptors);
  if (*image.folder != '\0' && chdir(image.folder) != 0) return errno;
  reset_handlers();
  pthread_sigmask(SIG_SETMASK, &inheritance.blocked, nullptr);
  execvpe(image.path, image.words, image.environment);  // also runs a script without an interpreter's line
  return errno;
}

/// The number of the new process, or -1; `failure` is the errno of a program that cannot be executed.
[[gnu::noinline]] pid_t fork_into(const Image& image, volatile int& failure) {
  const pid_t process = vfork();
  if (process != 0) return process;
  failure = become(image);
  _exit(127);
}

}  // namespace

FileDescriptor inheritable_copy(int descriptor) {
  FileDescriptor copy(fcntl(descriptor, F_DUPFD_CLOEXEC, kFirstInherited));
  if (!copy) refuse_descriptors();
  return copy;
}

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) refuse_descriptors();
  read_end = FileDescriptor(ends[0]);
  const FileDescriptor low(ends[1]);
  write_end = inheritable_copy(low.get());
  fcntl(write_end.get(), F_SETFL, 0);  // whoever writes waits until it is read
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

pid_t start_process(Program program, const Inheritance& inheritance) {
  const auto words = pointers(program.words), environment = pointers(program.environment);
  auto kept = inheritance;
  std::sort(kept.descriptors.begin(), kept.descriptors.end());
  const Image image{program.path.empty() ? words[0] : program.path.c_str(),
                    words.data(),
                    environment.data(),
                    program.folder.c_str(),
                    kept,
                    getpid()};
  volatile int failure = 0;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t process = fork_into(image, failure);
  const int error = process < 0 ? errno : failure;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (process < 0)
    throw ConfigError(fmt::format("cannot start a process: {}; start fewer ranks", std::strerror(error)));
  if (error == 0) return process;
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) continue;
  throw ConfigError(fmt::format("{}: cannot be executed: {}", program.words.at(0), std::strerror(error)));
}

}  // namespace trireme::ranks
