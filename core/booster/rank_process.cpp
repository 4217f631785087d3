#include "core/booster/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/booster/spawned_process.h"
#include "core/comm/flight/record.h"
#include "core/launch/rank_variables.h"

namespace trireme {
namespace {

std::vector<char*> as_pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// This program's environment at its start, and what tells a rank's process its place.
std::vector<std::string> environment_of_rank(const SpawnCall& call, int rank) {
  auto environment = program_start().environment;
  for (const auto& [name, value] : thread_variables(call.ranks, call.on_cpu, environment))
    set_variable(environment, name, value);
  set_variable(environment, comm::flight::kFolderVariable, call.flight_folder);
  set_variable(environment, kSpawnCall, call.place);
  set_variable(environment, kSpawnRank, fmt::format("{} {} {} {}", getpid(), rank, call.ranks, call.port));
  return environment;
}

/// The settings of posix_spawn(), which does not copy this process, however large it is.
class SpawnSettings {
 public:
  SpawnSettings(int report, int store_socket) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, report, kReportDescriptor);
    if (store_socket >= 0) posix_spawn_file_actions_adddup2(&actions_, store_socket, kStoreDescriptor);
    posix_spawn_file_actions_addclosefrom_np(&actions_,
                                             store_socket >= 0 ? kStoreDescriptor + 1 : kReportDescriptor + 1);
    posix_spawn_file_actions_addchdir_np(&actions_, program_start().folder.c_str());
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  [[nodiscard]] int start(pid_t* process, std::vector<std::string> arguments,
                          std::vector<std::string> environment) const {
    return posix_spawn(process, "/proc/self/exe", &actions_, &attributes_, as_pointers(arguments).data(),
                       as_pointers(environment).data());
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

ReportPipe::ReportPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw ConfigError(
        fmt::format("spawn: cannot make a pipe: {}; allow more open files (ulimit -n)", std::strerror(errno)));
  read_end = ends[0];
  write_end = fcntl(ends[1], F_DUPFD_CLOEXEC, 10);
  close(ends[1]);
  fcntl(read_end, F_SETFL, O_NONBLOCK);
}

ReportPipe::~ReportPipe() {
  close(read_end);
  close_write_end();
}

void ReportPipe::close_write_end() {
  if (write_end >= 0) close(std::exchange(write_end, -1));
}

RankProcess::RankProcess(const SpawnCall& call, int rank) : rank_(rank), place_(call.place) {
  const SpawnSettings settings(pipe_.write_end, rank == 0 ? call.store_socket : -1);
  const int error = settings.start(&process_, program_start().arguments, environment_of_rank(call, rank));
  pipe_.close_write_end();
  if (error == 0) return;
  process_ = -1;
  throw ConfigError(fmt::format("spawn: cannot start rank {} of {}: {}", rank, call.ranks, std::strerror(error)));
}

RankProcess::~RankProcess() {
  if (process_ <= 0) return;
  send(SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void RankProcess::look() {
  std::array<char, 65536> part{};
  while (!at_end_) {
    const auto length = read(pipe_.read_end, part.data(), part.size());
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) break;
    at_end_ = length == 0;
    bytes_.append(part.data(), static_cast<std::size_t>(length));
    parse();
  }
  if (process_ <= 0) return;
  int status = 0;
  const pid_t ended = waitpid(process_, &status, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return;
  const bool unread = !at_end_;
  process_ = -1;
  if (unread) look();  // what it wrote since the last read
  // Where the program ignores SIGCHLD, or waits for all children itself, only the report is known.
  on_end(ended < 0 ? 0 : status);
}

void RankProcess::parse() {
  ReportHeader header{};
  while (bytes_.size() >= sizeof header) {
    std::memcpy(&header, bytes_.data(), sizeof header);
    if (bytes_.size() < sizeof header + header.length) return;
    auto text = bytes_.substr(sizeof header, header.length);
    bytes_.erase(0, sizeof header + header.length);
    if (header.kind == ReportKind::reached) reached_ = true;
    if (header.kind == ReportKind::done) {
      done_ = true;
      text_ = std::move(text);
    } else if (header.kind == ReportKind::failed) {
      failure_ = {rank_, header.value, fmt::format("rank {}: {}", rank_, text)};
    }
  }
}

void RankProcess::on_end(int status) {
  if (done_ || failure_) return;
  const bool by_signal = WIFSIGNALED(status);
  int code = by_signal ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  auto end = fmt::format("rank {} ended with exit code {}", rank_, code);
  if (by_signal && WTERMSIG(status) == SIGKILL)
    end = fmt::format("rank {} was killed by signal 9", rank_);
  else if (by_signal)
    end = fmt::format("rank {} was ended by signal {} ({})", rank_, WTERMSIG(status), strsignal(WTERMSIG(status)));
  if (!reached_)
    end += fmt::format(
        " before it came to the call of spawn() at {}: a rank runs the program again from main() on, which "
        "must come to the same call",
        place_.substr(0, place_.rfind('#')));
  else if (!by_signal)
    end += " before the function of spawn() returned";
  if (code == 0) code = reached_ ? 1 : static_cast<int>(ExitCode::config);
  failure_ = {rank_, code, end};
}

}  // namespace trireme
