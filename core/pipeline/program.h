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
#pragma once

#include <vector>

#include "core/pipeline/schedule.h"

namespace trireme::pipeline {

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
