#include <algorithm>

#include "core/base/error.h"
#include "core/pipeline/alternate.h"
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

}  // namespace

Schedule interleaved(int ranks, int microbatches, int chunks) {
  TRIREME_CHECK(ranks >= 1 && microbatches >= 1 && chunks >= 1,
                "interleaved of {} ranks, {} microbatches and {} chunks", ranks, microbatches, chunks);
  Schedule out{.name = "interleaved", .ranks = ranks, .chunks = chunks, .microbatches = microbatches, .actions = {}};
  const auto sizes = group_sizes(ranks, microbatches);
  std::vector<Action> forwards, backwards;
  int first = 0;
  for (const int size : sizes) {
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int i = 0; i < size; ++i) {
        forwards.push_back({Op::forward, chunk, first + i});
        backwards.push_back({Op::backward, chunks - 1 - chunk, first + i});
      }
    first += size;
  }
  // In the warm-up, the first microbatch passes through all chunks, and its gradient returns over the ranks after this
  // one. One forward per such rank would suffice if messages took no time (as in 1F1B); the second one hides them.
  const int a_rank_behind = chunks == 1 ? 1 : 2;
  for (int rank = 0; rank < ranks; ++rank)
    out.actions.push_back(
        alternate(forwards, backwards, (chunks - 1) * sizes.front() + a_rank_behind * (ranks - 1 - rank)));
  return out;
}

}  // namespace trireme::pipeline
