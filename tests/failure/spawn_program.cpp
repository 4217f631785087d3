// A program that calls spawn() as users do. Its first argument names what the ranks do; spawn_test.cpp reads the
// output.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/base/verdict.h"
#include "core/program/program.h"
#include "core/program/spawn.h"

namespace {

using trireme::LaunchInfo;

std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  DIR* listing = opendir(folder);
  while (listing != nullptr && readdir(listing) != nullptr) ++count;
  if (listing != nullptr) closedir(listing);
  return count;
}

/// Two calls with captured variables, results, and a call without them.
void work() {
  std::printf("main\n");
  int changed = 1;
  const std::string captured = "a capture";
  trireme::spawn(2, [&](const LaunchInfo& info) {
    std::printf("first %d/%d %d/%d %s\n", info.rank, info.size, info.local_rank, info.local_size, captured.c_str());
    changed = 2;
  });
  std::printf("between, changed %d\n", changed);
  const auto texts =
      trireme::spawn(3, [](const LaunchInfo& info) { return std::string(100'000, 'x') + std::to_string(info.rank); });
  for (const auto& text : texts) std::printf("result %zu %c\n", text.size(), text.back());
  trireme::spawn(1, [](trireme::comm::World& world) { std::printf("world of %d\n", world.size()); });
}

/// Pages that this process holds in memory.
long resident_pages() {
  long all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

/// Nothing is left after many calls, in a program that has threads and ignores the ends of children. `worlds`: the
/// ranks meet in each call.
void leak(int calls, bool worlds) {
  std::binary_semaphore finished(0);
  std::thread other([&] { finished.acquire(); });
  std::size_t descriptors = 0, threads = 0;
  long pages = 0;
  for (int i = 0; i < calls; ++i) {
    if (worlds) {
      trireme::spawn(2, [](trireme::comm::World& world) { world.group().barrier(); });
    } else {
      const auto texts = trireme::spawn(2, [](const LaunchInfo&) { return std::string("done"); });
      if (texts != std::vector<std::string>{"done", "done"}) std::printf("call %d has lost its results\n", i);
    }
    if (i == 0) {
      descriptors = entries_of("/proc/self/fd");
      threads = entries_of("/proc/self/task");
      pages = resident_pages();
    }
  }
  std::printf("resident pages after the first call %ld, since then %+ld\n", pages, resident_pages() - pages);
  const auto failing = [](const LaunchInfo& info) {
    if (info.rank == 1) throw trireme::ConfigError("wrong");
    std::this_thread::sleep_for(std::chrono::minutes(10));
  };
  try {
    trireme::spawn(2, failing);
  } catch (const trireme::RankError&) {
    std::printf("rank error\n");
  }
  const bool child = waitpid(-1, nullptr, WNOHANG) != -1;
  std::printf("descriptors %+d threads %+d children %d\n",
              static_cast<int>(entries_of("/proc/self/fd")) - static_cast<int>(descriptors),
              static_cast<int>(entries_of("/proc/self/task")) - static_cast<int>(threads), child ? 1 : 0);
  finished.release();
  other.join();
}

/// The ranks wait; rank 1 fails in the way that the argument names.
void fail(const std::string& how) {
  if (how == "lost")
    trireme::spawn(3, [](trireme::comm::World& world) {
      if (world.rank() == 1) raise(SIGKILL);
      world.group().barrier();
    });
  trireme::spawn(3, [&](const LaunchInfo& info) {
    if (info.rank == 1) {
      if (how == "throw") throw trireme::DataError("sample 7 is missing");
      if (how == "foreign") throw std::runtime_error("of the program");
      if (how == "kill") raise(SIGKILL);
      if (how == "crash") std::abort();
      if (how == "exit") std::exit(3);
      if (how == "nested") trireme::spawn(1, [](const LaunchInfo&) {});
      if (how == "comm") throw trireme::CommError("the network is gone");
    }
    if (how == "stubborn" && info.rank == 0) throw trireme::DataError("stop");
    if (how == "stubborn") signal(SIGTERM, SIG_IGN);
    std::this_thread::sleep_for(std::chrono::minutes(10));
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", how = argc > 2 ? argv[2] : "";
  try {
    if (what == "work") work();
    if (what == "leak") leak(std::atoi(how.c_str()), false);
    if (what == "leak_worlds") leak(std::atoi(how.c_str()), true);
    if (what == "fail") fail(how);
    if (what == "sleep")
      trireme::spawn(2, [](const LaunchInfo&) { std::this_thread::sleep_for(std::chrono::minutes(10)); });
    if (what == "ranks") trireme::spawn(std::atoi(how.c_str()), [](const LaunchInfo&) {});
    if (what == "print")
      return trireme::run_program("spawn_program", [&](trireme::comm::World&) -> int {
        std::printf("a result\n");
        std::cout << "another one\n";
        return trireme::integer_argument("COUNT", how, 2, 8);
      });
    if (what == "spawn_in_program")
      return trireme::run_program("spawn_program", [] {
        trireme::spawn(2, [](const LaunchInfo& info) {
          if (info.rank == 1) throw trireme::DataError("sample 7 is missing");
        });
        return 0;
      });
    if (what == "turn") {  // comes to the call only once
      if (access(how.c_str(), F_OK) == 0) return 9;
      std::fclose(std::fopen(how.c_str(), "w"));
      trireme::spawn(1, [](const LaunchInfo&) {});
    }
    if (what == "start") {  // the program changes what it had at its start
      std::printf("%s %s\n", argv[3], std::getenv("SPAWN_TEST_VARIABLE"));
      std::fflush(stdout);
      if (chdir("/") != 0) return 1;
      setenv("SPAWN_TEST_VARIABLE", "changed", 1);
      const bool in_rank = std::getenv("RANK") != nullptr;
      trireme::spawn(1, [&](const LaunchInfo&) {
        std::printf("%s %s %d %s\n", argv[3], std::getenv("SPAWN_TEST_VARIABLE"), in_rank,
                    std::getenv("TRIREME_LAUNCHER"));
      });
    }
  } catch (const trireme::RankError& error) {
    std::fprintf(stderr, "RankError of rank %d, code %d: %s\n", error.rank(), static_cast<int>(error.code()),
                 error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
