#include <algorithm>

#include "core/base/error.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {
namespace {

// 1F1B with the weight gradients delayed by `rank` microbatches. A rank holds p - rank microbatches between forward and
// input gradient and `rank` more until their weight gradient: p together, as many as the first rank of 1F1B. The later
// the rank, the earlier it sends its input gradients, and the more weight gradients are left to fill its idle time at
// the end.
std::vector<Action> actions_of(int rank, int ranks, int microbatches) {
  std::vector<Action> out;
  const int warm_up = std::min(microbatches, ranks - 1 - rank);
  int forwards = 0, weights = 0;
  while (forwards < warm_up) out.push_back({Op::forward, 0, forwards++});
  for (int i = 0; i < microbatches; ++i) {
    if (forwards < microbatches) out.push_back({Op::forward, 0, forwards++});
    out.push_back({Op::backward_input, 0, i});
    if (i >= rank) out.push_back({Op::backward_weight, 0, weights++});
  }
  while (weights < microbatches) out.push_back({Op::backward_weight, 0, weights++});
  return out;
}

}  // namespace

Schedule zb_h1(int ranks, int microbatches) {
  TRIREME_CHECK(ranks >= 1 && microbatches >= 1, "zb_h1 of {} ranks and {} microbatches", ranks, microbatches);
  Schedule out{.name = "zb_h1", .ranks = ranks, .chunks = 1, .microbatches = microbatches, .actions = {}};
  for (int rank = 0; rank < ranks; ++rank) out.actions.push_back(actions_of(rank, ranks, microbatches));
  return out;
}

}  // namespace trireme::pipeline
