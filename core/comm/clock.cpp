#include "core/comm/clock.h"

#include <ATen/ops/zeros.h>

#include <limits>

#include "core/base/trace.h"

namespace trireme::comm {

// Cristian, "Probabilistic clock synchronization", 1989: the asked clock read half way through the fastest answer.
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
        (void)time.item<double>();  // on a GPU, recv() orders the stream alone: the message may still be on its way
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
