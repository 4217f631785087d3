// The schedules whose backward passes are not split: gpipe, 1f1b and interleaved.
#include <algorithm>
#include <functional>

#include "core/base/error.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {
namespace {

// Microbatches go through the chunks in groups: a group's forwards of chunk 0, of chunk 1, ..., then those of the next
// group. When a group of p or more has left the last rank's chunk, its first microbatch is back at rank 0 for the next
// chunk. A smaller group would stall there, and can even deadlock. So if p does not divide m, the groups become larger,
// never smaller, and as even as possible: their size determines the warm-up, and with it the memory.
std::vector<int> group_sizes(int ranks, int microbatches) {
  const int groups = std::max(1, microbatches / ranks);
  std::vector<int> sizes;
  for (int i = 0; i < groups; ++i) sizes.push_back(microbatches / groups + (i < microbatches % groups ? 1 : 0));
  return sizes;
}

/// Each rank runs `warm_up(rank)` forwards, then one forward and one backward alternately, then the remaining
/// backwards.
Schedule alternating(const char* name, int ranks, int microbatches, int chunks,
                     const std::function<int(int rank)>& warm_up) {
  TRIREME_CHECK(ranks >= 1 && microbatches >= 1 && chunks >= 1, "{} of {} ranks, {} microbatches and {} chunks", name,
                ranks, microbatches, chunks);
  Schedule out{.name = name, .ranks = ranks, .chunks = chunks, .microbatches = microbatches, .actions = {}};
  std::vector<Action> forwards, backwards;
  int first = 0;
  for (const int size : group_sizes(ranks, microbatches)) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int i = 0; i < size; ++i) {
        forwards.push_back({Op::forward, chunk, first + i});
        backwards.push_back({Op::backward, chunks - 1 - chunk, first + i});
      }
    first += size;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    auto& actions = out.actions.emplace_back();
    auto next = forwards.begin() + std::min(warm_up(rank), static_cast<int>(forwards.size()));
    actions.assign(forwards.begin(), next);
    for (const auto& backward : backwards) {
      if (next != forwards.end()) actions.push_back(*next++);
      actions.push_back(backward);
    }
  }
  return out;
}

}  // namespace

Schedule gpipe(int ranks, int microbatches) {
  return alternating("gpipe", ranks, microbatches, 1, [&](int) { return microbatches; });
}

Schedule one_f_one_b(int ranks, int microbatches) {
  // A rank's first backward can start when all ranks after it have run their forward.
  return alternating("1f1b", ranks, microbatches, 1, [&](int rank) { return ranks - 1 - rank; });
}

Schedule interleaved(int ranks, int microbatches, int chunks) {
  // In the warm-up, the first microbatch passes through all chunks, and its gradient returns over the ranks after this
  // one. One forward per such rank would suffice if messages took no time (as in 1F1B); the second one hides them.
  return alternating("interleaved", ranks, microbatches, chunks, [&](int rank) {
    const int a_rank_behind = chunks == 1 ? 1 : 2;
    return (chunks - 1) * group_sizes(ranks, microbatches).front() + a_rank_behind * (ranks - 1 - rank);
  });
}

}  // namespace trireme::pipeline
