// A program whose rank 1 does something wrong in the middle of its collectives, for hang_test.
//
//   hang_program HOW DEADLINE [check] [TOKEN...]
//   HOW: none     all ranks do the same, and end
//        kill     rank 1 kills itself (SIGKILL)         stop   rank 1 stops itself (SIGSTOP)
//        never    rank 1 sleeps for ever                slow   rank 1 computes for 1.5 times the deadline, then goes on
//        other    rank 1 calls another collective       shape  rank 1 reduces a tensor of another shape
//        message  rank 1 waits for a message that rank 0 never sends
//        error    rank 1 has an error of its own        same   all ranks have this error
//   DEADLINE: seconds. check: WorldOptions::check. The tokens are for finding the processes.
#include <ATen/ops/ones.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/comm/flight/recorder.h"
#include "core/program/program.h"

namespace trireme::tests {
namespace {

constexpr int kBefore = 20;  // collectives that all ranks do alike

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// What rank 1 does in place of the next all-reduce.
void go_wrong(const std::string& how, const comm::Group& group, double deadline) {
  auto tensor = at::ones({16, 4});
  if (how == "kill") raise(SIGKILL);
  if (how == "stop") raise(SIGSTOP);
  if (how == "error") throw DataError("a file is broken");
  if (how == "never") sleep_for(3600);
  if (how == "slow") sleep_for(1.5 * deadline);
  if (how == "message") return group.recv(tensor, 0);
  if (how == "shape") return group.all_reduce(at::ones({64, 4}));
  if (how != "other") return group.all_reduce(tensor);
  group.broadcast(tensor, 0);
  group.barrier();
}

int run_rank(comm::World& world, const std::string& how, double deadline) {
  timespec now{};
  const auto& group = world.group();
  for (int i = 0; i < kBefore; ++i) group.all_reduce(at::ones({64}));
  clock_gettime(CLOCK_REALTIME, &now);
  std::printf("rank %d pid %d time %.3f folder %s\n", world.rank(), getpid(),
              static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec),
              comm::flight::folder().c_str());
  std::fflush(stdout);
  // A rank whose own computation before an operation is longer than the deadline has not failed.
  if (how == "slow" && world.rank() != 1) sleep_for(deadline);
  if (how == "same") throw DataError("a file is broken");
  if (world.rank() == 1)
    go_wrong(how, group, deadline);
  else
    group.all_reduce(at::ones({16, 4}));
  group.barrier();
  return 0;
}

}  // namespace
}  // namespace trireme::tests

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc < 3) return 2;
  const std::string how = argv[1];
  const double deadline = std::atof(argv[2]);
  comm::WorldOptions options{.device = "cpu"};
  options.timeout = std::chrono::milliseconds(static_cast<int>(1000 * deadline));
  options.check = argc > 3 && std::string(argv[3]) == "check";
  return run_program(
      "hang_program", [&](comm::World& world) { return tests::run_rank(world, how, deadline); }, options);
}
