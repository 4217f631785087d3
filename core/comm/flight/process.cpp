#include "core/comm/flight/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace trireme::comm::flight {
namespace {

struct Stat {
  char state = 0;  ///< 0: no such process
  std::int64_t start = 0;
};

Stat stat_of(int pid) {
  std::array<char, 32> path{};
  std::array<char, 1024> text{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const auto length = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  if (length <= 0) return {};
  // The program's name is in parentheses, and may contain any.
  const char* at = std::strrchr(text.data(), ')');
  if (at == nullptr || at[1] == '\0') return {};
  Stat found{.state = at[2]};
  constexpr int kFieldsToStart = 20;  // from the state, field 3, to the start, field 22
  for (int field = 0; field < kFieldsToStart && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  if (at != nullptr) found.start = std::strtoll(at, nullptr, 10);
  return found;
}

}  // namespace

std::int64_t process_start(int pid) { return stat_of(pid).start; }

ProcessState process_state(int pid, std::int64_t start) {
  const auto found = stat_of(pid);
  if (found.state == 0 || found.start != start || found.state == 'Z' || found.state == 'X') return ProcessState::gone;
  return found.state == 'T' || found.state == 't' ? ProcessState::stopped : ProcessState::running;
}

std::uint64_t pid_namespace() {
  struct stat file {};
  return stat("/proc/self/ns/pid", &file) == 0 ? static_cast<std::uint64_t>(file.st_ino) : 0;
}

}  // namespace trireme::comm::flight
