#include "datasets/shard_command.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/base/text.h"
#include "core/launch/process.h"

namespace trireme::datasets {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMessageBytes = 4000, kMessageLines = 5;  // of the standard error, in an error
constexpr int kTick = 20;  // milliseconds: the end of a process and a stop are looked for as often

/// Runs the command $2. The background shell reads from descriptor $1 until this program ends, then kills the group; it
/// is waited for, because not every container's init does so.
constexpr const char* kScript =
    R"((read -r end < /proc/self/fd/$1; kill -KILL 0) & (eval "$2"); status=$?; { kill -KILL $!; wait; } 2> /dev/null; exit $status)";

/// A shell that runs a command, in a process group that ends with this object.
class ShardShell {
 public:
  explicit ShardShell(const std::string& command) {
    const auto life = ranks::inheritable_copy(life_.read_end.get());
    process_ = ranks::start_process({.path = "/bin/sh",
                                     .words = {"sh", "-c", kScript, "sh", std::to_string(life.get()), command},
                                     .environment = whole_environment(),
                                     .folder = "/"},
                                    {.output = output_.write_end.get(),
                                     .error = error_.write_end.get(),
                                     .descriptors = {life.get()},
                                     .others = false,
                                     .own_group = true});
    for (auto* pipe : {&output_, &error_}) pipe->write_end = FileDescriptor();  // the command has the others
  }
  ~ShardShell() {
    if (process_ > 0) end();
  }
  ShardShell(const ShardShell&) = delete;
  ShardShell& operator=(const ShardShell&) = delete;

  /// The process stays a zombie until end(), so that no other group can get its number.
  [[nodiscard]] bool has_ended() const {
    siginfo_t found{};
    return waitid(P_PID, static_cast<id_t>(process_), &found, WEXITED | WNOHANG | WNOWAIT) != 0 || found.si_pid != 0;
  }
  /// Kills what is left of the group. Returns how the shell has ended, as waitpid() says it; nullopt where the program
  /// ignores SIGCHLD.
  std::optional<int> end() {
    const auto process = std::exchange(process_, -1);
    kill(-process, SIGKILL);
    int status = 0;
    pid_t ended = -1;
    do ended = waitpid(process, &status, 0);
    while (ended < 0 && errno == EINTR);
    return ended < 0 ? std::nullopt : std::optional(status);
  }

  /// Waits until there is something to read, at most for a tick.
  void wait() {
    pollfd ends[] = {{output_.read_end.get(), POLLIN, 0}, {error_.read_end.get(), POLLIN, 0}};  // -1 is passed over
    poll(ends, 2, kTick);
  }
  template <class Use>
  bool read_output(const Use& use) {
    return read_part(output_.read_end, use);
  }
  template <class Use>
  bool read_error(const Use& use) {
    return read_part(error_.read_end, use);
  }

 private:
  /// Whether there was something to read.
  template <class Use>
  bool read_part(FileDescriptor& from, const Use& use) {
    if (!from) return false;
    const auto count = ::read(from.get(), part_.data(), part_.size());
    if (count > 0) use(std::string_view(part_.data(), static_cast<std::size_t>(count)));
    if (count == 0) from = FileDescriptor();
    return count > 0;
  }

  ranks::Pipe output_, error_, life_;
  std::array<char, 65536> part_{};
  pid_t process_ = -1;
};

/// "; it said: ..." with the last lines of a standard error; "" if there are none.
std::string last_messages(const std::string& said) {
  auto lines = text::split(said, '\n');
  std::erase_if(lines, [](const auto& line) { return line.find_first_not_of(" \t\r") == line.npos; });
  if (lines.empty()) return "";
  lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(std::min(lines.size(), kMessageLines)));
  for (auto& line : lines) line = for_terminal(line);
  return "; it said: " + text::join(lines, " / ");
}

}  // namespace

void run_shard_command(const std::string& name, const std::string& command, std::chrono::milliseconds patience,
                       const std::stop_token& stop, const std::function<void(std::string_view)>& output) {
  ShardShell shell(command);
  std::string said;
  auto last = Clock::now();
  const auto read_outputs = [&] {
    const bool more = shell.read_output([&](std::string_view part) {
      output(part);
      last = Clock::now();
    });
    return shell.read_error([&](std::string_view part) {
      said += part;
      if (said.size() > kMessageBytes) said.erase(0, said.size() - kMessageBytes);
    }) || more;
  };
  while (!shell.has_ended()) {
    if (stop.stop_requested())
      throw DataError(fmt::format("{}: ended, because its shard is not needed any more", name));
    if (Clock::now() - last > patience)
      throw DataError(fmt::format("{}: ended, because it wrote nothing for {:g} s{}", name,
                                  std::chrono::duration<double>(patience).count(), last_messages(said)));
    shell.wait();
    read_outputs();
  }
  const auto end = shell.end();
  while (read_outputs()) continue;
  if (!end)
    throw DataError(
        fmt::format("{}: how it ended is not known, because this program ignores SIGCHLD; let it have its "
                    "default",
                    name));
  const int status = *end;
  if (WIFSIGNALED(status))
    throw DataError(fmt::format("{}: was ended by signal {} ({}){}", name, WTERMSIG(status),
                                strsignal(WTERMSIG(status)), last_messages(said)));
  if (WEXITSTATUS(status) != 0)
    throw DataError(fmt::format("{}: exit status {}{}", name, WEXITSTATUS(status), last_messages(said)));
}

}  // namespace trireme::datasets
