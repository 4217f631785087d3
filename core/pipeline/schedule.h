// Schedule: the order in which each pipeline rank computes. Program, below: the same with its messages. Both are plain
// data: pure functions make schedules (schedules.h), the verifier proves them, and the executor runs their programs
// without knowing any by name.
//
// A model is partitioned into ranks x chunks consecutive stages. Each rank holds `chunks` of them, its model chunks,
// according to `Layout`:
//
//   loop   stage s on rank s mod ranks, as chunk s / ranks      rank 0 | 0 4     v   rank 0 | 0 7
//   v      down the ranks and up again; two chunks                   1 | 1 5              1 | 1 6
//                                                                    2 | 2 6              2 | 2 5
//                                                                    3 | 3 7              3 | 3 4
//
// The forward of a stage needs the activation of the stage before it, and its backward the gradient of the stage after
// it; the backward of the last stage starts from the loss of its own forward. A backward may be whole, or split in two:
// the gradient of the input, which another rank waits for, and the gradient of the weights, which no other rank needs.
//
// Invariants of every schedule (checked by the verifier): each stage runs the forward of each microbatch once, then its
// backward once. Both run in the order of the microbatches, so that gradients are summed in the same order in every
// schedule. Each rank follows its list, and no rank waits for itself. Stages, ranks, chunks and microbatches count from
// 0.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::pipeline {

enum class Op {
  forward,
  backward,         ///< gradients of the input and of the weights
  backward_input,   ///< gradient of the input only
  backward_weight,  ///< gradient of the weights only, later
};

/// "forward", "backward_input", ...
const char* name(Op op);

/// Whether an op computes the gradient of a stage's input.
constexpr bool makes_input_gradient(Op op) { return op == Op::backward || op == Op::backward_input; }
/// Whether an op is the last that a stage runs for a microbatch.
constexpr bool makes_weight_gradient(Op op) { return op == Op::backward || op == Op::backward_weight; }

/// One unit of work of a rank.
struct Action {
  Op op;
  int chunk;  ///< the rank's model chunk
  int microbatch;
  bool operator==(const Action&) const = default;
};

enum class Layout { loop, v };

/// The location of a stage.
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
  std::vector<std::vector<Action>> actions;  ///< of each rank, in order

  [[nodiscard]] int stages() const { return ranks * chunks; }
  [[nodiscard]] int stage_of(int rank, int chunk) const;
  [[nodiscard]] StageLocation location_of(int stage) const;
  /// The index of what `stage` produces from a microbatch for another stage: its activation in a forward, the gradient
  /// of its input in a backward. From 0, less than items().
  [[nodiscard]] std::size_t item(Op op, int stage, int microbatch) const;
  [[nodiscard]] std::size_t items() const { return item(Op::forward, stages(), 0); }
  /// "forward of stage 5 (chunk 1), microbatch 3"
  [[nodiscard]] std::string describe(int rank, const Action& action) const;
};

/// The stage that produces the input of `action`: the one before for a forward, the one after for the gradient of an
/// input; -1 when it needs none from another stage (first forward, last backward, weight gradient).
int source_stage(const Schedule& schedule, int rank, const Action& action);
/// The stage that needs the result of `action`; -1 when none does.
int target_stage(const Schedule& schedule, int rank, const Action& action);

// Program: a schedule with its messages, that is, the sequence of computation and communication of one rank.
//
// Sends and receives are posted asynchronously (isend, irecv); a compute instruction first waits for its own receive. A
// send follows the action that produces its tensor. A receive is posted one action before the one that needs it, so
// that the message can be transferred meanwhile, or directly before that one (Posting). Nothing is sent between two
// stages of one rank (the turn of the V, or a single rank): the executor passes the tensor directly.
//
// Order: rank b receives from rank a in the order in which a sends, activations and gradients together, so the
// transport needs no tags. A transport that executes a rank's operations with a peer in order (NCCL: a communicator has
// one stream) needs a communicator for each direction, else a receive posted early blocks the sends after it.
//
// There is no deadlock, even if a send completes only with its receive: only compute instructions wait, and only for a
// message whose receive, and all earlier ones from that peer, were posted before. So ranks wait only where the schedule
// requires it.

enum class Kind {
  compute,
  send_activation,  ///< the output of a chunk's forward
  recv_activation,  ///< the input of a chunk's forward
  send_gradient,    ///< the gradient of a chunk's input
  recv_gradient,    ///< the gradient of a chunk's output
};

/// "compute", "send_activation", ...
const char* name(Kind kind);

constexpr bool is_send(Kind kind) { return kind == Kind::send_activation || kind == Kind::send_gradient; }
constexpr bool is_receive(Kind kind) { return kind == Kind::recv_activation || kind == Kind::recv_gradient; }

struct Instruction {
  Kind kind;
  Action action;  ///< compute: the action to run. A message: the action of this rank that produces or needs it
  int peer = -1;  ///< the other pipeline rank of a message
  bool operator==(const Instruction&) const = default;
};

using Program = std::vector<Instruction>;

/// When a receive is posted.
enum class Posting {
  ahead,   ///< at least one action before the one that needs it
  at_use,  ///< directly before the one that needs it: for transports whose posted receive occupies part of the device
           ///< (NCCL's is a kernel that spins until the message arrives)
};

/// The program of each rank. @throws LogicError when no rank produces the input of an action.
std::vector<Program> lower(const Schedule& schedule, Posting posting = Posting::ahead);

}  // namespace trireme::pipeline
