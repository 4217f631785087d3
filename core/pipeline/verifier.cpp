#include "core/pipeline/verifier.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace trireme::pipeline {
namespace {

/// Thrown by the checks and caught by verify(), which returns the text.
struct Violation {
  std::string text;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Violation{fmt::format(text, std::forward<Args>(args)...)};
}

/// The progress of one stage: numbers of microbatches, since they are processed in order.
struct Progress {
  int forward = 0, input = 0, weight = 0;
};

/// Why `action` may not run now; "" when it may.
std::string out_of_order(const Action& action, const Progress& done, int microbatches) {
  const int due = action.op == Op::forward ? done.forward : makes_input_gradient(action.op) ? done.input : done.weight;
  if (due == microbatches) return "all microbatches have already been done";
  if (action.microbatch != due) return fmt::format("microbatch {} comes first", due);
  if (makes_input_gradient(action.op) && done.forward <= due) return "its forward has not run yet";
  if (makes_weight_gradient(action.op) && action.op != Op::backward && done.input <= due)
    return "its input gradient has not been computed yet";
  if (action.op == Op::backward && done.weight != due) return "earlier weight gradients have not been computed yet";
  return "";
}

void check_rank(const Schedule& schedule, int rank) {
  const auto& actions = schedule.actions[static_cast<std::size_t>(rank)];
  std::vector<Progress> stages(static_cast<std::size_t>(schedule.chunks));
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto& action = actions[i];
    if (action.chunk < 0 || action.chunk >= schedule.chunks || action.microbatch < 0 ||
        action.microbatch >= schedule.microbatches)
      fail("rank {}, action {}: there is no chunk {} with a microbatch {}", rank, i, action.chunk, action.microbatch);
    auto& done = stages[static_cast<std::size_t>(action.chunk)];
    if (const auto why = out_of_order(action, done, schedule.microbatches); !why.empty())
      fail("rank {}, action {}: {}: {}", rank, i, schedule.describe(rank, action), why);
    if (action.op == Op::forward) ++done.forward;
    if (makes_input_gradient(action.op)) ++done.input;
    if (makes_weight_gradient(action.op)) ++done.weight;
  }
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const auto& done = stages[static_cast<std::size_t>(chunk)];
    const auto left = [&](int had, const char* what) {
      if (had != schedule.microbatches)
        fail("rank {}, at its end: stage {} (chunk {}) has only {} of {} {}", rank, schedule.stage_of(rank, chunk),
             chunk, had, schedule.microbatches, what);
    };
    left(done.forward, "forwards");
    left(done.input, "input gradients");
    left(done.weight, "weight gradients");
  }
}

void check_layout(const Schedule& schedule) {
  if (schedule.ranks < 1 || schedule.chunks < 1 || schedule.microbatches < 1)
    fail("{} ranks, {} chunks and {} microbatches do not make a schedule", schedule.ranks, schedule.chunks,
         schedule.microbatches);
  if (schedule.actions.size() != static_cast<std::size_t>(schedule.ranks))
    fail("there are lists of actions for {} ranks, not for {}", schedule.actions.size(), schedule.ranks);
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto [rank, chunk] = schedule.location_of(stage);
    if (rank < 0 || rank >= schedule.ranks || chunk < 0 || chunk >= schedule.chunks ||
        schedule.stage_of(rank, chunk) != stage)
      fail("stage {} is mapped to chunk {} of rank {}, which is mapped to stage {}", stage, chunk, rank,
           schedule.stage_of(rank, chunk));
  }
}

/// Complete and in order: checks each rank's list.
void check_schedule(const Schedule& schedule) {
  check_layout(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) check_rank(schedule, rank);
}

/// "rank 1, instruction 7: send_activation to 2, of forward of stage 1 (chunk 0), microbatch 3"
std::string location(const Schedule& schedule, int rank, std::size_t at, const Instruction& instruction) {
  const auto what = schedule.describe(rank, instruction.action);
  if (instruction.kind == Kind::compute) return fmt::format("rank {}, instruction {}: {}", rank, at, what);
  return fmt::format("rank {}, instruction {}: {} {} {}, of {}", rank, at, name(instruction.kind),
                     is_send(instruction.kind) ? "to" : "from", instruction.peer, what);
}

/// The item that an action produces for another stage, and the item that it needs.
std::size_t made(const Schedule& schedule, int rank, const Action& action) {
  return schedule.item(action.op, schedule.stage_of(rank, action.chunk), action.microbatch);
}
std::size_t needed(const Schedule& schedule, int rank, const Action& action) {
  return schedule.item(action.op, source_stage(schedule, rank, action), action.microbatch);
}

int rank_of(const Schedule& schedule, int stage) { return stage < 0 ? -1 : schedule.location_of(stage).rank; }

/// Checks one rank's program against its list.
class ProgramCheck {
 public:
  ProgramCheck(const Schedule& schedule, int rank)
      : schedule_(schedule),
        rank_(rank),
        actions_(schedule.actions[static_cast<std::size_t>(rank)]),
        seen_(schedule.items()) {
    for (const auto& action : actions_)
      if (action.op != Op::backward_weight) seen_[made(schedule, rank, action)].op = action.op;
  }

  void run(const Program& program) {
    for (at_ = 0; at_ < program.size(); ++at_) {
      const auto& instruction = program[at_];
      if (instruction.kind == Kind::compute)
        compute(instruction);
      else
        message(instruction);
    }
    if (computed_ < actions_.size())
      fail("rank {}, at its program's end: {} is not computed", rank_, schedule_.describe(rank_, actions_[computed_]));
    for (const auto& action : actions_) {
      const int peer = rank_of(schedule_, target_stage(schedule_, rank_, action));
      if (peer >= 0 && peer != rank_ && !seen_[made(schedule_, rank_, action)].sent)
        fail("rank {}, at its program's end: the result of {} is not sent to rank {}", rank_,
             schedule_.describe(rank_, action), peer);
    }
  }

 private:
  /// The state of a forward or input-gradient action of this rank, indexed by the item that it produces.
  struct Seen {
    Op op = Op::backward_weight;  ///< of the action; backward_weight: this rank has none
    bool computed = false, sent = false, received = false;
  };

  void compute(const Instruction& instruction) {
    const auto& action = instruction.action;
    if (computed_ == actions_.size() || action != actions_[computed_])
      fail("{}: not what the schedule computes here", location(schedule_, rank_, at_, instruction));
    ++computed_;
    if (action.op == Op::backward_weight) return;
    auto& seen = seen_[made(schedule_, rank_, action)];
    seen.computed = true;
    const int peer = rank_of(schedule_, source_stage(schedule_, rank_, action));
    if (peer >= 0 && peer != rank_ && !seen.received)
      fail("{}: its receive from rank {} has not been posted", location(schedule_, rank_, at_, instruction), peer);
  }

  void message(const Instruction& instruction) {
    const auto& [kind, action, peer] = instruction;
    const auto refuse = [&](const char* why) { fail("{}: {}", location(schedule_, rank_, at_, instruction), why); };
    const bool of_forward = kind == Kind::send_activation || kind == Kind::recv_activation;
    if (action.chunk < 0 || action.chunk >= schedule_.chunks || action.microbatch < 0 ||
        action.microbatch >= schedule_.microbatches || action.op == Op::backward_weight ||
        of_forward != (action.op == Op::forward) || seen_[made(schedule_, rank_, action)].op != action.op)
      refuse("no action of this rank has such a message");
    auto& seen = seen_[made(schedule_, rank_, action)];
    const int other = is_send(kind) ? target_stage(schedule_, rank_, action) : source_stage(schedule_, rank_, action);
    if (peer == rank_ || rank_of(schedule_, other) != peer) refuse("not the rank of the neighbour stage");
    bool& done = is_send(kind) ? seen.sent : seen.received;
    if (done) refuse("a second time");
    done = true;
    if (is_send(kind) && !seen.computed) refuse("before it is computed");
  }

  const Schedule& schedule_;
  const int rank_;
  const std::vector<Action>& actions_;
  std::vector<Seen> seen_;  ///< by item
  std::size_t at_ = 0, computed_ = 0;
};

/// Runs the programs of all ranks together: a rank that lacks a message waits until it is sent. Its receive, and those
/// before it in the peer's order, are posted by then, as check_programs and check_messages have proven.
class Machine {
 public:
  Machine(const Schedule& schedule, const std::vector<Program>& programs)
      : schedule_(schedule), programs_(programs), next_(programs.size()), items_(schedule.items()) {}

  void run() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) called_.push_back(rank);
    while (!called_.empty()) {
      const int rank = called_.back();
      called_.pop_back();
      while (step(rank)) ++next_[static_cast<std::size_t>(rank)];
    }
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      if (next_instruction(rank)) fail("{} waits forever for the {}", where(rank), culprit(rank));
  }

 private:
  struct Item {
    bool made = false, sent = false;
  };

  [[nodiscard]] const Instruction* next_instruction(int rank) const {
    const auto at = next_[static_cast<std::size_t>(rank)];
    const auto& program = programs_[static_cast<std::size_t>(rank)];
    return at < program.size() ? &program[at] : nullptr;
  }

  bool step(int rank) {
    const auto* instruction = next_instruction(rank);
    if (instruction == nullptr) return false;
    const auto& [kind, action, peer] = *instruction;
    const int source = source_stage(schedule_, rank, action);
    if (is_send(kind)) {
      items_[made(schedule_, rank, action)].sent = true;
      called_.push_back(peer);
    } else if (kind == Kind::compute) {
      if (source >= 0) {
        const auto& input = items_[needed(schedule_, rank, action)];
        if (rank_of(schedule_, source) == rank ? !input.made : !input.sent) return false;
      }
      if (action.op != Op::backward_weight) items_[made(schedule_, rank, action)].made = true;
    }
    return true;
  }

  [[nodiscard]] std::string where(int rank) const {
    return location(schedule_, rank, next_[static_cast<std::size_t>(rank)], *next_instruction(rank));
  }

  [[nodiscard]] std::string culprit(int rank) const {
    const int source = source_stage(schedule_, rank, next_instruction(rank)->action);
    const int other = rank_of(schedule_, source);
    return fmt::format("{} of stage {}, {}",
                       next_instruction(rank)->action.op == Op::forward ? "activation" : "gradient", source,
                       other == rank ? "which it produces later" : "while the sender is at " + where(other));
  }

  const Schedule& schedule_;
  const std::vector<Program>& programs_;
  std::vector<std::size_t> next_;  ///< of each rank
  std::vector<Item> items_;        ///< by item
  std::vector<int> called_;        ///< ranks whose missing message may be available now
};

/// Lowered: checks each rank's program against its list. @pre check_schedule
void check_programs(const Schedule& schedule, const std::vector<Program>& programs) {
  if (programs.size() != static_cast<std::size_t>(schedule.ranks))
    fail("there are programs for {} ranks, not for {}", programs.size(), schedule.ranks);
  for (int rank = 0; rank < schedule.ranks; ++rank)
    ProgramCheck(schedule, rank).run(programs[static_cast<std::size_t>(rank)]);
}

/// Matched: checks the programs of each pair of ranks. @pre check_programs
void check_messages(const Schedule& schedule, const std::vector<Program>& programs) {
  struct End {
    std::size_t item, at;
  };
  std::map<std::pair<int, int>, std::vector<End>> sent, received;  // by (sender, receiver)
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto& program = programs[static_cast<std::size_t>(rank)];
    for (std::size_t at = 0; at < program.size(); ++at) {
      const auto& [kind, action, peer] = program[at];
      if (is_send(kind)) sent[{rank, peer}].push_back({made(schedule, rank, action), at});
      if (is_receive(kind)) received[{peer, rank}].push_back({needed(schedule, rank, action), at});
    }
  }
  // Both lists hold the same messages: check_programs has proven that each is sent and received once, between the right
  // ranks.
  for (const auto& [ranks, list] : received) {
    const auto [from, to] = ranks;
    const auto& sends = sent[ranks];
    for (std::size_t i = 0; i < list.size(); ++i)
      if (sends[i].item != list[i].item)
        fail("{}: message {} from rank {}, but that rank sends {}",
             location(schedule, to, list[i].at, programs[static_cast<std::size_t>(to)][list[i].at]), i, from,
             location(schedule, from, sends[i].at, programs[static_cast<std::size_t>(from)][sends[i].at]));
  }
}

}  // namespace

std::string verify(const Schedule& schedule) {
  try {
    check_schedule(schedule);  // only a complete schedule can be lowered
  } catch (const Violation& violation) {
    return violation.text;
  }
  return verify(schedule, lower(schedule));
}

std::string verify(const Schedule& schedule, const std::vector<Program>& programs) {
  try {
    check_schedule(schedule);
    check_programs(schedule, programs);
    check_messages(schedule, programs);
    Machine(schedule, programs).run();
  } catch (const Violation& violation) {
    return violation.text;
  }
  return "";
}

}  // namespace trireme::pipeline
