// Schedule: in which order each pipeline rank computes. Data alone: what makes it is a pure function (schedules.h),
// what proves it is the verifier, what runs it an executor that knows none by name.
//
// A model is cut into ranks x chunks stages, one after another; each rank holds `chunks` of them, which it calls its
// model chunks. `Layout` says which:
//
//   loop   stage s on rank s mod ranks, as chunk s / ranks      rank 0 | 0 4     v   rank 0 | 0 7
//   v      down the ranks and up again; two chunks                   1 | 1 5              1 | 1 6
//                                                                    2 | 2 6              2 | 2 5
//                                                                    3 | 3 7              3 | 3 4
//
// Forward of a stage needs the activation of the stage before it, backward the gradient of the stage after it; the last
// stage's backward begins at its own forward's loss. A backward may come whole, or in two: the gradient of the input,
// which another rank waits for, and that of the weights, which nobody does.
//
// Invariants of every schedule (the verifier checks them): each stage does each microbatch's forward once, then its
// backward once; both in the order of the microbatches, so that gradients are summed in one order whatever the
// schedule; a rank follows its list and nothing in it waits for itself. Stages, ranks, chunks and microbatches count
// from 0.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::pipeline {

enum class Op {
  forward,
  backward,         ///< gradients of the input and of the weights together
  backward_input,   ///< ... of the input alone
  backward_weight,  ///< ... of the weights, later
};

/// "forward", "backward_input", ...
const char* name(Op op);

/// True for the ops that make the gradient of a stage's input.
constexpr bool makes_input_gradient(Op op) { return op == Op::backward || op == Op::backward_input; }
/// True for the ops after which a stage needs nothing of the microbatch any more.
constexpr bool makes_weight_gradient(Op op) { return op == Op::backward || op == Op::backward_weight; }

/// One piece of work of a rank.
struct Action {
  Op op;
  int chunk;  ///< the rank's model chunk
  int microbatch;
  bool operator==(const Action&) const = default;
};

enum class Layout { loop, v };

/// Where a stage is.
struct StageLocation {
  int rank, chunk;
  bool operator==(const StageLocation&) const = default;
};

struct Schedule {
  std::string name;
  int ranks;   ///< of the pipeline
  int chunks;  ///< model chunks on each rank
  int microbatches;
  Layout layout = Layout::loop;
  std::vector<std::vector<Action>> actions;  ///< each rank's, in order

  [[nodiscard]] int stages() const { return ranks * chunks; }
  [[nodiscard]] int stage_of(int rank, int chunk) const;
  [[nodiscard]] StageLocation location_of(int stage) const;
  /// A number for what `stage` makes of a microbatch for another stage: its activation in a forward, the gradient of
  /// its input in a backward. From 0, below items().
  [[nodiscard]] std::size_t item(Op op, int stage, int microbatch) const;
  [[nodiscard]] std::size_t items() const { return item(Op::forward, stages(), 0); }
  /// "forward of stage 5 (chunk 1), microbatch 3"
  [[nodiscard]] std::string describe(int rank, const Action& action) const;
};

/// The stage that `action`'s input comes from: the one before for a forward, the one after for the gradient of an
/// input; -1 when it needs none of another stage (first forward, last backward, weight gradient).
int source_stage(const Schedule& schedule, int rank, const Action& action);
/// The stage that waits for what `action` makes; -1 when none does.
int target_stage(const Schedule& schedule, int rank, const Action& action);

/// When a microbatch stops counting as live on a rank.
enum class LiveUntil { weight_gradient, input_gradient };

/// The largest number of (chunk, microbatch) pairs that each rank holds at once, from their forward on. Follows from
/// the order alone. A pair weighs what one chunk's activations weigh: 1 / chunks of a rank's.
std::vector<int> peak_live(const Schedule& schedule, LiveUntil until = LiveUntil::weight_gradient);

}  // namespace trireme::pipeline
