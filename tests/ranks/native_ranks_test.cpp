// Our own transport when ranks die, leave early or wait for long. The test starts its ranks itself, as programs that it
// may kill: this program again, with the name of a role.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/comm/world.h"
#include "core/launch/rank_variables.h"

namespace trireme::tests {
namespace {

constexpr int kLives = 100;  // from this descriptor on, one for each rank, which ends when the rank's process does

void wait_for_end(int rank) {
  char none = 0;
  while (read(kLives + rank, &none, 1) < 0 && errno == EINTR) {
  }
}

/// Returns the CommError's text, or what else happened.
template <class Body>
std::string error_text(Body&& body) {
  try {
    body();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

int fail(const comm::World& world, const std::string& why) {
  std::fprintf(stderr, "rank %d: %s\n", world.rank(), why.c_str());
  return 1;
}

// The roles. Each is run by every rank, and returns the rank's exit code. A CommError that a role throws must name rank
// 1's end.

/// Rank 1 is killed in the middle of an all-reduce; the others name it.
int killed(comm::World& world) {
  auto tensor = at::full({1 << 20}, 1.0f);
  for (int i = 0; i < 3; ++i) world.group().all_reduce(tensor);
  for (;;) {
    if (world.rank() == 1) std::thread([] { raise(SIGKILL); }).detach();
    world.group().all_reduce(tensor);
  }
}

/// Rank 1 is killed while rank 2 looks elsewhere. The others have failed for it and are gone when rank 2 looks again:
/// it names rank 1, not one of those.
int late(comm::World& world) {
  const auto& group = world.group();
  auto tensor = at::zeros({1 << 20});
  group.barrier();
  if (world.rank() == 1) raise(SIGKILL);
  if (world.rank() == 2)
    for (int other = 0; other < world.size(); ++other)
      if (other != 2) wait_for_end(other);
  group.all_reduce(tensor);
  return fail(world, "no error");
}

/// Rank 1 sends and is gone before rank 0 receives: the messages still arrive, also after its end was noticed.
int leaves(comm::World& world) {
  const auto& group = world.group();
  if (world.rank() == 1) {
    for (int i = 0; i < 20; ++i) group.send(at::full({1000}, static_cast<float>(i)), 0);
    _exit(0);
  }
  wait_for_end(1);
  const auto sent = error_text([&] { group.send(at::zeros({1 << 20}), 1); });
  if (sent.find("has ended") == std::string::npos) return fail(world, sent);
  auto tensor = at::zeros({1000});
  for (int i = 0; i < 20; ++i) {
    group.recv(tensor, 1);
    if (tensor[999].item<float>() != static_cast<float>(i)) return fail(world, fmt::format("message {} is wrong", i));
  }
  const auto text = error_text([&] { group.recv(tensor, 1); });
  const bool named =
      text.find("recv (sequence 22) of group world, rank 0 of 2: rank 1 (world rank 1) has ended") != std::string::npos;
  return named ? 0 : fail(world, text);
}

/// Rank 0 ends in order and rank 1 still waits for it: an error, not a timeout.
int finishes(comm::World& world) {
  if (world.rank() == 0) return 0;
  const auto text = error_text([&] { world.group().recv(at::zeros({1}), 0); });
  return text.find("has ended") != std::string::npos ? 0 : fail(world, text);
}

/// For each thread of a process, a line with its state and the number of times that it has gone to sleep.
std::string threads_of(std::int64_t process) {
  std::string all;
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), gone)) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("State:") || line.starts_with("voluntary_ctxt_switches:")) all += line;
    all += '\n';
  }
  return all;
}

/// Waits until all threads of a process sleep, and none has run while this one looked twenty times. Returns whether
/// that came. The background thread looks every 100 ms whether a peer has ended: more looks take longer on a loaded
/// machine.
bool falls_asleep(std::int64_t process) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  std::string before;
  for (int looks = 0; looks < 20; ++looks) {
    auto now = threads_of(process);
    if (now != before || now.find("(running)") != std::string::npos) looks = 0;
    before = std::move(now);
    if (std::chrono::steady_clock::now() > until) return false;
  }
  return true;
}

/// A rank that waits sleeps, be it in the call or in the background.
int waits(comm::World& world) {
  const auto& group = world.group();
  auto process = at::full({1}, static_cast<std::int64_t>(getpid()), at::kLong);
  auto tensor = at::zeros({1});
  if (world.rank() == 0) {
    group.send(process, 1);
    group.recv(tensor, 1);
    auto work = group.recv_async(tensor, 1);
    wait_for_end(1);  // the background thread waits for the message
    work.wait();
    return 0;
  }
  group.recv(process, 0);
  for (const char* where : {"the call", "the background"}) {
    if (!falls_asleep(process.item<std::int64_t>()))
      return fail(world, fmt::format("rank 0 does not sleep in {}", where));
    group.send(tensor, 0);
  }
  _exit(0);
}

const std::map<std::string, int (*)(comm::World&)> kRoles{
    {"killed", killed}, {"late", late}, {"leaves", leaves}, {"finishes", finishes}, {"waits", waits}};

/// A pipe for each rank: the rank has the writing end, and all have the others.
class Lives {
 public:
  explicit Lives(int ranks) : pipes_(static_cast<std::size_t>(ranks)) {
    for (auto& ends : pipes_) EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  }
  ~Lives() {
    for (const auto& ends : pipes_)
      for (const int end : ends) close(end);
  }
  Lives(const Lives&) = delete;
  Lives& operator=(const Lives&) = delete;
  /// In a rank's process.
  void pass_on(int rank) const {
    for (std::size_t other = 0; other < pipes_.size(); ++other)
      dup2(pipes_[other][0], kLives + static_cast<int>(other));
    fcntl(pipes_[static_cast<std::size_t>(rank)][1], F_SETFD, 0);
  }
  /// In this process, when the rank's has been started.
  void close_end_of(int rank) {
    auto& end = pipes_[static_cast<std::size_t>(rank)][1];
    close(end);
    end = -1;
  }

 private:
  std::vector<std::array<int, 2>> pipes_;
};

/// Starts the ranks of a role and returns their wait statuses.
std::vector<int> run(const std::string& role, int ranks) {
  const StoreSocket store;
  Lives lives(ranks);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
      for (const auto& [name, value] : rank_variables(rank, ranks, store.port(), "launch", store.descriptor()))
        set(name.c_str(), value);
      set("OMP_NUM_THREADS", "1");
      if (role == "apart") set("TRIREME_HOST_IDENTITY", fmt::format("container{} boot", rank));
      if (rank == 0) fcntl(store.descriptor(), F_SETFD, 0);
      lives.pass_on(rank);
      execl("/proc/self/exe", "native_ranks_test", "--role", role.c_str(), nullptr);
      _exit(127);
    }
    processes.push_back(child);
    lives.close_end_of(rank);
  }
  std::vector<int> statuses(processes.size());
  for (std::size_t i = 0; i < processes.size(); ++i) waitpid(processes[i], &statuses[i], 0);
  return statuses;
}

TEST(NativeRanks, end_and_wait_as_they_should) {
  struct Case {
    std::string role;
    int ranks;
  };
  const std::vector<Case> cases{{"killed", 2}, {"killed", 3},   {"killed", 4}, {"late", 3}, {"late", 4},
                                {"leaves", 2}, {"finishes", 2}, {"waits", 2},  {"apart", 3}};
  for (const auto& [role, ranks] : cases) {
    const auto statuses = run(role, ranks);
    for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
      SCOPED_TRACE(fmt::format("{} with {} ranks, rank {}", role, ranks, rank));
      if ((role == "killed" || role == "late") && rank == 1)
        EXPECT_TRUE(WIFSIGNALED(statuses[rank]) && WTERMSIG(statuses[rank]) == SIGKILL);
      else
        EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0) << statuses[rank];
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const bool ours = entry.path().filename().string().find("trireme") != std::string::npos;
    EXPECT_FALSE(ours && entry.is_regular_file()) << entry.path() << " is left";  // a folder may be a launcher's
  }
}

/// The world is gone when this returns. Ranks of the role "apart" seem to be on different hosts, and none gets a world.
int run_role(const std::string& role) {
  std::string text;
  try {
    const auto world = comm::World::start(detect_launch(), {.device = "cpu", .timeout = std::chrono::seconds(600)});
    return kRoles.at(role)(*world);
  } catch (const CommError& error) {
    text = error.what();
    if (text.find(" (world rank 1) has ended") != std::string::npos) return 0;
  } catch (const ConfigError& error) {
    text = error.what();
    if (role == "apart" && text.starts_with("rank 0 is on host container0 and rank 1 on host container1: without MPI"))
      return 0;
  }
  std::fprintf(stderr, "%s\n", text.c_str());
  return 1;
}

}  // namespace
}  // namespace trireme::tests

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--role") return trireme::tests::run_role(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
