// Our own transport when ranks die, leave early or wait for long. The test starts its ranks itself, as programs that it
// may kill: this program again, with the name of a role.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/comm/world.h"

namespace trireme::tests {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

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

// The roles. Each is run by every rank, and returns the rank's exit code.

/// Rank 1 is killed in the middle of an all-reduce; the others name it within a second.
int killed(comm::World& world) {
  auto tensor = at::full({1 << 20}, 1.0f);
  for (int i = 0; i < 3; ++i) world.group().all_reduce(tensor);
  auto last = Clock::now();
  const auto text = error_text([&] {
    for (;;) {
      if (world.rank() == 1) std::thread([] { raise(SIGKILL); }).detach();
      world.group().all_reduce(tensor);
      last = Clock::now();
    }
  });
  const auto took = seconds_since(last);
  if (text.find("all_reduce (sequence") == std::string::npos ||
      text.find(" (world rank 1) has ended") == std::string::npos)
    return fail(world, text);
  return took < 1 ? 0 : fail(world, fmt::format("noticed the end after {:.2f} s", took));
}

/// Rank 1 is killed while rank 2 looks elsewhere. The others have failed for it and left when rank 2 looks again: it
/// names rank 1, not one of those.
int late(comm::World& world) {
  const auto& group = world.group();
  auto tensor = at::zeros({1 << 20});
  group.barrier();
  if (world.rank() == 1) raise(SIGKILL);
  if (world.rank() == 2) std::this_thread::sleep_for(milliseconds(600));
  const auto text = error_text([&] { group.all_reduce(tensor); });
  return text.find(" (world rank 1) has ended") != std::string::npos ? 0 : fail(world, text);
}

/// Rank 1 is killed while it sleeps: a neighbour that wakes it afterwards lives on, and all notice the end.
int asleep(comm::World& world) {
  const auto& group = world.group();
  auto tensor = at::zeros({1});
  group.barrier();
  if (world.rank() == 1) {
    std::thread([] {
      std::this_thread::sleep_for(milliseconds(250));
      raise(SIGKILL);
    }).detach();
    group.recv(tensor, 0);
  }
  if (world.rank() == 0) {
    std::this_thread::sleep_for(milliseconds(600));  // this rank does not look, so it has not noticed the end
    (void)error_text([&] { group.send(tensor, 1); });
  }
  const auto text = error_text([&] { group.recv(tensor, 1); });
  return text.find(" (world rank 1) has ended") != std::string::npos ? 0 : fail(world, text);
}

/// Rank 1 sends and is gone before rank 0 receives: the messages still arrive, and then the end.
int leaves(comm::World& world) {
  const auto& group = world.group();
  if (world.rank() == 1) {
    for (int i = 0; i < 20; ++i) group.send(at::full({1000}, static_cast<float>(i)), 0);
    _exit(0);
  }
  std::this_thread::sleep_for(milliseconds(400));
  auto tensor = at::zeros({1000});
  for (int i = 0; i < 20; ++i) {
    group.recv(tensor, 1);
    if (tensor[999].item<float>() != static_cast<float>(i)) return fail(world, fmt::format("message {} is wrong", i));
  }
  const auto text = error_text([&] { group.recv(tensor, 1); });
  if (text.find("recv (sequence 21) of group world, rank 0 of 2: rank 1 (world rank 1) has ended") == std::string::npos)
    return fail(world, text);
  const auto sent = error_text([&] { group.send(at::zeros({1 << 20}), 1); });
  return sent.find("has ended") != std::string::npos ? 0 : fail(world, sent);
}

/// Rank 0 ends in order and rank 1 still waits for it: an error at once, not a timeout.
int finishes(comm::World& world) {
  if (world.rank() == 0) return 0;
  const auto start = Clock::now();
  const auto text = error_text([&] { world.group().recv(at::zeros({1}), 0); });
  return text.find("has ended") != std::string::npos && seconds_since(start) < 2 ? 0 : fail(world, text);
}

/// A rank that waits for two seconds uses next to no time of its core.
int waits(comm::World& world) {
  const auto& group = world.group();
  auto tensor = at::zeros({1});
  group.barrier();
  const auto cpu = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  };
  if (world.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    group.send(tensor, 0);
    return 0;
  }
  const auto before = cpu();
  auto work = group.recv_async(tensor, 1);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the background thread waits
  work.wait();
  const auto used = cpu() - before;
  return used < 0.1 ? 0 : fail(world, fmt::format("used {:.3f} s of CPU time in 2 s of waiting", used));
}

const std::map<std::string, int (*)(comm::World&)> kRoles{{"killed", killed},     {"late", late},
                                                          {"asleep", asleep},     {"leaves", leaves},
                                                          {"finishes", finishes}, {"waits", waits}};

/// A socket that listens on a free port of this machine; rank 0 gets it, as our own launchers pass it.
struct Listening {
  Listening() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    bind(fd, reinterpret_cast<sockaddr*>(&address), length);
    listen(fd, 16);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin_port);
  }
  ~Listening() { close(fd); }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  int port = 0;
};

/// Starts the ranks of a role and returns their wait statuses.
std::vector<int> run(const std::string& role, int ranks, int hosts) {
  const Listening listening;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
      set("TRIREME_LAUNCHER", "launch");
      set("RANK", std::to_string(rank));
      set("WORLD_SIZE", std::to_string(ranks));
      set("LOCAL_RANK", std::to_string(rank));
      set("LOCAL_WORLD_SIZE", std::to_string(ranks));
      set("MASTER_ADDR", "127.0.0.1");
      set("MASTER_PORT", std::to_string(listening.port));
      set("OMP_NUM_THREADS", "1");
      if (hosts > 1) set("TRIREME_HOST_IDENTITY", "test host " + std::to_string(rank * hosts / ranks));
      if (rank == 0)
        set("TRIREME_STORE_FD", std::to_string(listening.fd));
      else
        close(listening.fd);
      execl("/proc/self/exe", "native_ranks_test", "--role", role.c_str(), nullptr);
      _exit(127);
    }
    processes.push_back(child);
  }
  std::vector<int> statuses(processes.size());
  for (std::size_t i = 0; i < processes.size(); ++i) waitpid(processes[i], &statuses[i], 0);
  return statuses;
}

TEST(NativeRanks, end_and_wait_as_they_should) {
  struct Case {
    std::string role;
    int ranks, hosts;
  };
  const std::vector<Case> cases{{"killed", 2, 1}, {"killed", 3, 1},   {"killed", 4, 2},   {"late", 3, 1},
                                {"late", 4, 2},   {"late", 4, 4},     {"asleep", 4, 2},   {"leaves", 2, 1},
                                {"leaves", 2, 2}, {"finishes", 2, 1}, {"finishes", 2, 2}, {"waits", 2, 1},
                                {"waits", 2, 2}};
  for (const auto& [role, ranks, hosts] : cases) {
    const auto statuses = run(role, ranks, hosts);
    for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
      SCOPED_TRACE(fmt::format("{} with {} ranks on {} hosts, rank {}", role, ranks, hosts, rank));
      if ((role == "killed" || role == "late" || role == "asleep") && rank == 1)
        EXPECT_TRUE(WIFSIGNALED(statuses[rank]) && WTERMSIG(statuses[rank]) == SIGKILL);
      else
        EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0) << statuses[rank];
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const bool ours = entry.path().filename().string().find("trireme") != std::string::npos;
    EXPECT_FALSE(ours && entry.is_regular_file()) << entry.path() << " is left";  // a folder may be a front's
  }
}

int run_role(const std::string& role) {
  const auto info = comm::detect();
  const auto world = comm::World::start(info, {.device = "cpu", .timeout = std::chrono::seconds(60)});
  return kRoles.at(role)(*world);
}

}  // namespace
}  // namespace trireme::tests

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--role") return trireme::tests::run_role(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
