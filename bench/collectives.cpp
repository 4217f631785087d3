// Compares our all-reduce with raw blocking MPI_Allreduce, alternating in one run on the same ranks, and measures how
// much of a transfer is hidden behind compute. Prints one JSON object per line.
//
//   mpirun -n 2 --bind-to none build/release/bench/bench_collectives [ROUNDS]
//
// Under torchrun or `trireme launch` it measures our own transport, without the raw column; bench/collectives.py runs
// both and puts them side by side.
//
// Columns: our all-reduce waited for at once, ours waited for through its future (as c10d::Reducer does), and raw, as
// medians and 10th percentiles over the rounds, of the slowest rank in each round. "overlap" gives the times of some
// matrix products, of an all-reduce waited for at once, and of both with the all-reduce started first; hidden is
// (compute + transfer - both) / min(compute, transfer). The transfer uses the same cores as the compute here, so it
// cannot be hidden completely when the ranks occupy all cores. No time is asserted.
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/comm/world.h"

namespace {

using trireme::comm::Group;
using trireme::comm::ReduceOp;

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double percentile(std::vector<double> sorted, double share) {
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void overlap(const Group& group, std::int64_t bytes, int rounds) {
  auto tensor = at::full({bytes / 4}, 1.0f);
  auto matrix = at::full({256, 256}, 1.0f / 256);
  const auto compute = [&] {
    for (int i = 0; i < 60; ++i) matrix = matrix.matmul(matrix);
  };
  std::vector<double> computes, transfers, boths;
  const auto timed = [&](const std::function<void()>& run) {
    tensor.fill_(1.0f);
    group.barrier();
    const double start = now_us();
    run();
    auto slowest = at::full({1}, now_us() - start, at::kDouble);
    group.all_reduce(slowest, ReduceOp::max);
    return slowest.item<double>();
  };
  for (int round = -2; round < rounds; ++round) {
    const double only_compute = timed(compute);
    const double only_transfer = timed([&] { group.all_reduce(tensor); });
    const double both = timed([&] {
      auto work = group.all_reduce_async(tensor);
      compute();
      work.wait();
    });
    if (round < 0) continue;
    computes.push_back(only_compute);
    transfers.push_back(only_transfer);
    boths.push_back(both);
  }
  if (group.rank() != 0) return;
  const double c = percentile(computes, 0.5), t = percentile(transfers, 0.5), b = percentile(boths, 0.5);
  fmt::print(
      "{{\"bench\": \"overlap\", \"ranks\": {}, \"bytes\": {}, \"rounds\": {}, \"compute_us\": {:.0f}, "
      "\"transfer_us\": {:.0f}, "
      "\"both_us\": {:.0f}, \"hidden\": {:.3f}}}\n",
      group.size(), bytes, rounds, c, t, b, (c + t - b) / std::min(c, t));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto info = trireme::detect_launch();
  const auto world = trireme::comm::World::start(info, {.device = "cpu"});
  const auto& group = world->group();
  const bool mpi = world->transport().starts_with("Open MPI");
  if (group.size() < 2) {
    fmt::print(stderr, "start it with mpirun -n 2 or more, or trireme launch -n 2\n");
    return 2;
  }
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;

  for (const std::int64_t bytes : {std::int64_t{4} << 10, std::int64_t{64} << 10, std::int64_t{1} << 20,
                                   std::int64_t{16} << 20, std::int64_t{64} << 20}) {
    auto tensor = at::full({bytes / 4}, 1.0f);
    const int count = static_cast<int>(bytes / 4);
    // Every round starts from ones, so that its repeated sums stay finite.
    std::map<std::string, std::function<void()>> ways{
        {"ours", [&] { group.all_reduce(tensor, ReduceOp::sum); }},
        {"ours_future",
         [&] {
           std::vector<at::Tensor> tensors{tensor};
           group.process_group()->allreduce(tensors)->getFuture()->wait();
         }},
    };
    if (mpi)
      ways["raw"] = [&] { MPI_Allreduce(MPI_IN_PLACE, tensor.data_ptr(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
    std::map<std::string, std::vector<double>> times;
    const int repeats = bytes > (1 << 20) ? std::max(10, rounds / 4) : rounds;
    for (int round = -5; round < repeats; ++round) {
      for (const auto& [name, run] : ways) {
        tensor.fill_(1.0f);
        // Several small calls are timed together, because one lasts no longer than the clock's noise.
        const int calls = bytes <= (64 << 10) && name != "ours_future" ? 20 : 1;
        group.barrier();
        const double start = now_us();
        for (int i = 0; i < calls; ++i) run();
        auto slowest = at::full({1}, (now_us() - start) / calls, at::kDouble);
        group.all_reduce(slowest, ReduceOp::max);
        if (round >= 0) times[name].push_back(slowest.item<double>());
      }
    }
    if (world->rank() != 0) continue;
    const double ours = percentile(times["ours"], 0.5);
    fmt::print(
        "{{\"bench\": \"all_reduce\", \"ranks\": {}, \"bytes\": {}, \"rounds\": {}, \"transport\": \"{}\", "
        "\"ours_us\": {:.2f}, \"ours_p10_us\": {:.2f}, \"future_us\": {:.2f}",
        group.size(), bytes, repeats, world->transport(), ours, percentile(times["ours"], 0.1),
        percentile(times["ours_future"], 0.5));
    if (mpi) {
      const double raw = percentile(times["raw"], 0.5);
      fmt::print(", \"raw_us\": {:.2f}, \"raw_p10_us\": {:.2f}, \"of_raw_bandwidth\": {:.3f}", raw,
                 percentile(times["raw"], 0.1), raw / ours);
    }
    fmt::print("}}\n");
    std::fflush(stdout);
  }
  overlap(group, std::int64_t{25} << 20, std::max(5, rounds / 10));
  return 0;
}
