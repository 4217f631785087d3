#include "core/booster/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/verdict.h"
#include "core/booster/spawned_process.h"

namespace trireme {
namespace {

using SpawnClock = std::chrono::steady_clock;
constexpr int kMostRanks = 4096;
constexpr std::chrono::seconds kPatience{3};
/// A rank that loses its peer fails at once, perhaps before the peer's own error has arrived.
constexpr std::chrono::milliseconds kForTheCause{500};

/// "FILE:LINE:COLUMN#NUMBER": the number counts the calls at this place of the source.
std::string next_call(const std::source_location& where) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::scoped_lock lock(mutex);
  const auto place = fmt::format("{}:{}:{}", where.file_name(), where.line(), where.column());
  return fmt::format("{}#{}", place, ++calls[place]);
}

/// A pipe whose ends are not inherited, with numbers above those that a rank's process gets.
struct ReportPipe {
  int read_end = -1, write_end = -1;
  ReportPipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw ConfigError(
          fmt::format("spawn: cannot make a pipe: {}; allow more open files (ulimit -n)", std::strerror(errno)));
    read_end = ends[0];
    write_end = fcntl(ends[1], F_DUPFD_CLOEXEC, 10);
    close(ends[1]);
    fcntl(read_end, F_SETFL, O_NONBLOCK);
  }
  ~ReportPipe() {
    close(read_end);
    close_write_end();
  }
  ReportPipe(const ReportPipe&) = delete;
  ReportPipe& operator=(const ReportPipe&) = delete;
  void close_write_end() {
    if (write_end >= 0) close(std::exchange(write_end, -1));
  }
};

std::vector<char*> as_pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (auto& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// What all ranks of a call have in common.
struct SpawnCall {
  std::string place;
  int ranks;
  bool on_cpu;
  int port, store_socket;
};

/// This program's environment at its start, and what tells a rank's process its place.
std::vector<std::string> environment_of_rank(const SpawnCall& call, int rank) {
  std::vector<std::string> environment;
  for (const auto& variable : program_start().environment)
    if (!variable.starts_with(fmt::format("{}=", kSpawnCall)) && !variable.starts_with(fmt::format("{}=", kSpawnRank)))
      environment.push_back(variable);
  for (const auto& [name, value] : comm::thread_variables(call.ranks, call.on_cpu, environment))
    environment.push_back(fmt::format("{}={}", name, value));
  environment.push_back(fmt::format("{}={}", kSpawnCall, call.place));
  environment.push_back(fmt::format("{}={} {} {} {}", kSpawnRank, getpid(), rank, call.ranks, call.port));
  return environment;
}

/// How a rank has failed.
struct RankFailure {
  int rank, code;
  std::string message;
};

/// One rank's process, from its start to its end.
class RankProcess {
 public:
  RankProcess(const SpawnCall& call, int rank);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  /// Reads what it has reported and whether it has ended.
  void look();
  void send(int signal) const {
    if (process_ > 0) kill(process_, signal);
  }
  [[nodiscard]] bool ended() const { return process_ <= 0; }
  [[nodiscard]] int descriptor() const { return at_end_ ? -1 : pipe_.read_end; }
  [[nodiscard]] const std::optional<RankFailure>& failure() const { return failure_; }
  [[nodiscard]] std::string take_text() { return std::move(text_); }

 private:
  void parse();
  void on_end(int status);

  int rank_;
  ReportPipe pipe_;
  pid_t process_ = -1;
  bool at_end_ = false, reached_ = false, done_ = false;
  std::string bytes_, text_, place_;
  std::optional<RankFailure> failure_;
};

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
  const bool unread = ended == process_ && !at_end_;
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
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    failure_ = {rank_, code,
                signal == SIGKILL
                    ? fmt::format("rank {} was killed by signal 9", rank_)
                    : fmt::format("rank {} was ended by signal {} ({})", rank_, signal, strsignal(signal))};
  } else if (reached_) {
    failure_ = {rank_, code == 0 ? 1 : code,
                fmt::format("rank {} ended with exit code {} before the function of spawn() returned", rank_, code)};
  } else {
    failure_ = {rank_, code == 0 ? static_cast<int>(ExitCode::config) : code,
                fmt::format("rank {} ended with exit code {} before it came to the call of spawn() at {}: a rank runs "
                            "the program again from main() on, which must come to the same call",
                            rank_, code, place_.substr(0, place_.rfind('#')))};
  }
}

using RankProcesses = std::vector<std::unique_ptr<RankProcess>>;

/// Waits until a rank reports or ends, but not for long: an end alone wakes nobody if another process has the pipe.
void wait_for_news(const RankProcesses& ranks) {
  std::vector<pollfd> waiting;
  bool ending = false;
  for (const auto& rank : ranks) {
    if (rank->descriptor() >= 0) waiting.push_back({rank->descriptor(), POLLIN, 0});
    ending = ending || (rank->descriptor() < 0 && !rank->ended());
  }
  (void)poll(waiting.data(), waiting.size(), ending ? 1 : 100);
  for (const auto& rank : ranks) rank->look();
}

bool all_ended(const RankProcesses& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->ended(); });
}

void stop(const RankProcesses& ranks) {
  for (const auto& rank : ranks) rank->send(SIGTERM);
  const auto until = SpawnClock::now() + kPatience;
  while (!all_ended(ranks) && SpawnClock::now() < until) wait_for_news(ranks);
  for (const auto& rank : ranks) rank->send(SIGKILL);
  while (!all_ended(ranks)) wait_for_news(ranks);
}

/// The failure to report, of those that are known: one that is no communication error if there is one, because losing
/// a peer is a consequence.
const RankFailure* cause_of(const RankProcesses& ranks) {
  const RankFailure* cause = nullptr;
  for (const auto& rank : ranks) {
    const auto& failure = rank->failure();
    if (failure && (cause == nullptr || cause->code == static_cast<int>(ExitCode::communication))) cause = &*failure;
  }
  return cause;
}

/// Waits until all ranks have ended, or one has failed. Returns the failure.
std::optional<RankFailure> wait_for_all(const RankProcesses& ranks) {
  std::optional<SpawnClock::time_point> since;
  while (!all_ended(ranks)) {
    wait_for_news(ranks);
    const auto* cause = cause_of(ranks);
    if (cause == nullptr) continue;
    if (!since) since = SpawnClock::now();
    const bool final = cause->code != static_cast<int>(ExitCode::communication);
    if (final || SpawnClock::now() - *since > kForTheCause) return *cause;
  }
  const auto* cause = cause_of(ranks);
  return cause == nullptr ? std::nullopt : std::optional(*cause);
}

/// In a process that spawn() has started. Returns if `place` is an earlier call than the process's own.
void run_as_rank(SpawnedProcess& self, const std::string& place, const std::function<std::string()>& body) {
  TRIREME_REQUIRE(!self.reached(), "spawn() is called by a function that spawn() runs; call it from main()");
  if (place != self.call()) return;
  self.reach();
  std::string text;
  try {
    text = body();
  } catch (...) {
    const auto verdict = verdict_on(std::current_exception());
    self.end(ReportKind::failed, verdict.exit_code, verdict.message);
  }
  self.end(ReportKind::done, 0, text);
}

}  // namespace

namespace detail {

std::vector<std::string> spawn_ranks(int ranks, const std::function<std::string()>& body, bool on_cpu,
                                     const std::source_location& where) {
  TRIREME_REQUIRE(ranks >= 1 && ranks <= kMostRanks, "spawn({}): the number of ranks must be from 1 to {}", ranks,
                  kMostRanks);
  const auto place = next_call(where);
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  if (auto* self = SpawnedProcess::get()) {
    run_as_rank(*self, place, body);
    return texts;
  }
  RankProcesses processes;
  {
    const comm::StoreSocket store(/*this_host_only=*/true, 0);
    const int inherited = fcntl(store.descriptor(), F_DUPFD_CLOEXEC, 10);
    const SpawnCall call{place, ranks, on_cpu, store.port(), inherited};
    try {
      for (int rank = 0; rank < ranks; ++rank) processes.push_back(std::make_unique<RankProcess>(call, rank));
    } catch (...) {
      close(inherited);
      throw;
    }
    close(inherited);  // rank 0 has the socket
  }
  if (const auto failure = wait_for_all(processes)) {
    stop(processes);
    throw RankError(failure->rank, static_cast<ExitCode>(failure->code), failure->message, where);
  }
  for (std::size_t rank = 0; rank < texts.size(); ++rank) texts[rank] = processes[rank]->take_text();
  return texts;
}

bool only_cpu(const SpawnOptions& options) { return options.world.device == "cpu" || !comm::host_has_gpu(); }

std::unique_ptr<comm::World> start_spawned_world(const SpawnOptions& options) {
  return comm::World::start(comm::detect(), options.world);
}

}  // namespace detail
}  // namespace trireme
