#include "core/base/error.h"
#include "core/pipeline/schedules.h"

namespace trireme::pipeline {
namespace {

// A list scheduler: time advances in ticks, each action takes one tick, and at each tick every rank takes the first of
// kWishes that can run. Stages process microbatches in order, so three counters per stage are the whole state.
struct Done {
  int forward = 0, input = 0, weight = 0;
};

struct Wish {
  Op op;
  int chunk;
};

// Work that moves up the ranks has priority: a forward of chunk 1 leads to the loss, and a backward of chunk 0 is the
// last of a microbatch. Weight gradients fill idle time, or free memory. Of the 24 orders of the first four wishes,
// this one reaches the shortest possible step from m = 3p/2 on.
constexpr Wish kWishes[] = {{Op::forward, 1},        {Op::forward, 0},         {Op::backward_input, 0},
                            {Op::backward_input, 1}, {Op::backward_weight, 1}, {Op::backward_weight, 0}};

class ListScheduler {
 public:
  ListScheduler(int ranks, int microbatches)
      : out_{.name = "zbv",
             .ranks = ranks,
             .chunks = 2,
             .microbatches = microbatches,
             .layout = Layout::v,
             .actions = std::vector<std::vector<Action>>(static_cast<std::size_t>(ranks))},
        done_(static_cast<std::size_t>(out_.stages())) {}

  Schedule run() {
    for (int left = out_.stages() * out_.microbatches * 3; left > 0;) {
      const int before = left;
      auto after = done_;  // results of this tick cannot be used within it
      for (int rank = 0; rank < out_.ranks; ++rank)
        if (take_one(rank, after)) --left;
      TRIREME_CHECK(left < before, "zbv of {} ranks and {} microbatches deadlocks", out_.ranks, out_.microbatches);
      done_ = std::move(after);
    }
    return std::move(out_);
  }

 private:
  bool take_one(int rank, std::vector<Done>& after) {
    for (const auto& wish : kWishes) {
      const auto stage = static_cast<std::size_t>(out_.stage_of(rank, wish.chunk));
      if (!ready(wish.op, stage, rank)) continue;
      auto& done = after[stage];
      int& count = wish.op == Op::forward ? done.forward : wish.op == Op::backward_input ? done.input : done.weight;
      out_.actions[static_cast<std::size_t>(rank)].push_back({wish.op, wish.chunk, count++});
      return true;
    }
    return false;
  }

  [[nodiscard]] bool ready(Op op, std::size_t stage, int rank) const {
    const auto& own = done_[stage];
    if (op == Op::backward_weight) return own.weight < own.input;
    if (op == Op::backward_input)
      return own.input < own.forward && (stage + 1 == done_.size() || own.input < done_[stage + 1].input);
    return own.forward < out_.microbatches && (stage == 0 || own.forward < done_[stage - 1].forward) &&
           live(rank) < 2 * out_.ranks;  // counted in halves of a rank: p whole microbatches, like the first rank of
                                         // 1F1B
  }

  [[nodiscard]] int live(int rank) const {
    int live = 0;
    for (int chunk = 0; chunk < out_.chunks; ++chunk) {
      const auto& done = done_[static_cast<std::size_t>(out_.stage_of(rank, chunk))];
      live += done.forward - done.weight;
    }
    return live;
  }

  Schedule out_;
  std::vector<Done> done_;  ///< by stage
};

}  // namespace

Schedule zbv(int ranks, int microbatches) {
  TRIREME_CHECK(ranks >= 1 && microbatches >= 1, "zbv of {} ranks and {} microbatches", ranks, microbatches);
  return ListScheduler(ranks, microbatches).run();
}

}  // namespace trireme::pipeline
