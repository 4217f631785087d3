// Program: a schedule with its messages: what one rank does, in order, computing and communicating.
//
// Everything but computing is posted and never waited for where it stands (isend, irecv); a compute instruction first
// waits for its own receive. A send follows the action that makes its tensor; a receive is posted one action before the
// one that needs it, so that the message can travel meanwhile, or directly before that one (Posting). Between two
// stages of one rank (the turn of the V, or one rank alone) nothing is sent: the executor hands the tensor over.
//
// Order: what rank a sends to rank b is received by b in that same order, activations and gradients together, so a
// transport without tags serves. One that carries out a rank's posts to a peer one after the other (NCCL: a
// communicator has one stream) needs a communicator for each direction, else a receive posted ahead holds up the sends
// behind it.
//
// No deadlock, even when a send ends only with its receive: nothing but a compute instruction waits, and only for a
// message whose receive, and all before it from that peer, were posted earlier. So ranks wait only as the schedule
// does.
#pragma once

#include <string>
#include <vector>

#include "pipeline/schedule/schedule.h"

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
  Action action;  ///< compute: what. A message: the action of this rank that makes it, or needs it
  int peer = -1;  ///< a message's other pipeline rank
  bool operator==(const Instruction&) const = default;
};

using Program = std::vector<Instruction>;

/// When a receive is posted.
enum class Posting {
  ahead,   ///< an action before the one that needs it, or earlier
  at_use,  ///< behind all that the rank does before that one: where a posted receive holds a part of the device (NCCL's
           ///< is a kernel that spins until the message is there)
};

/// The program of each rank. @throws LogicError when an action needs what no rank makes.
std::vector<Program> lower(const Schedule& schedule, Posting posting = Posting::ahead);

}  // namespace trireme::pipeline
