#include "core/comm/clock.h"

#include <ATen/ops/zeros.h>

#include <limits>

#include "core/base/trace.h"

namespace trireme::comm {

// Cristian, "Probabilistic clock synchronization", 1989: rank 0's clock is assumed to have been read half way through
// the fastest round trip.
double clock_offset(World& world) {
  constexpr int kRounds = 8;
  double offset = 0;
  const auto& group = world.group();
  auto time = at::zeros({1}, at::TensorOptions(at::kDouble).device(world.device()));
  for (int other = 1; other < world.size(); ++other) {
    double fastest = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      if (world.rank() == 0) {
        group.recv(time, other);
        (void)time.item<double>();  // on a GPU, recv() only orders the stream; reading the value waits for the message
        time.fill_(trace::now());
        group.send(time, other);
      } else if (world.rank() == other) {
        const double asked = trace::now();
        group.send(time, 0);
        group.recv(time, 0);
        const double there = time.item<double>(), answered = trace::now();
        if (answered - asked >= fastest) continue;
        fastest = answered - asked;
        offset = there - (asked + answered) / 2;
      }
    }
  }
  return offset;
}

}  // namespace trireme::comm
