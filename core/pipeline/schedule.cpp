#include "core/pipeline/schedule.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "core/base/error.h"

namespace trireme::pipeline {

const char* name(Op op) {
  static constexpr std::array kNames{"forward", "backward", "backward_input", "backward_weight"};
  return kNames.at(static_cast<std::size_t>(op));
}

int Schedule::stage_of(int rank, int chunk) const {
  const bool returns = layout == Layout::v && chunk % 2 == 1;
  return chunk * ranks + (returns ? ranks - 1 - rank : rank);
}

StageLocation Schedule::location_of(int stage) const {
  const int chunk = stage / ranks, along = stage % ranks;
  const bool returns = layout == Layout::v && chunk % 2 == 1;
  return {returns ? ranks - 1 - along : along, chunk};
}

std::size_t Schedule::item(Op op, int stage, int microbatch) const {
  const auto pair = static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches);
  return 2 * (pair + static_cast<std::size_t>(microbatch)) + (op == Op::forward ? 0 : 1);
}

std::string Schedule::describe(int rank, const Action& action) const {
  return fmt::format("{} of stage {} (chunk {}), microbatch {}", pipeline::name(action.op),
                     stage_of(rank, action.chunk), action.chunk, action.microbatch);
}

int source_stage(const Schedule& schedule, int rank, const Action& action) {
  const int stage = schedule.stage_of(rank, action.chunk);
  if (action.op == Op::forward) return stage - 1;
  if (makes_input_gradient(action.op) && stage + 1 < schedule.stages()) return stage + 1;
  return -1;
}

int target_stage(const Schedule& schedule, int rank, const Action& action) {
  const int stage = schedule.stage_of(rank, action.chunk);
  if (action.op == Op::forward) return stage + 1 < schedule.stages() ? stage + 1 : -1;
  return makes_input_gradient(action.op) ? stage - 1 : -1;
}

namespace {

class Lowering {
 public:
  Lowering(const Schedule& schedule, Posting posting)
      : schedule_(schedule), ahead_(posting == Posting::ahead ? 1 : 0), reader_(schedule.items(), -1) {
    for (int rank = 0; rank < schedule.ranks; ++rank) list_messages(rank);
  }

  Program program_of(int rank) {
    const auto& actions = schedule_.actions[static_cast<std::size_t>(rank)];
    Program out;
    std::size_t posted = 0;  // number of actions whose receives are posted
    for (std::size_t i = 0; i < actions.size(); ++i) {
      while (posted < actions.size() && posted <= i + ahead_) receive_for(rank, actions[posted++], out);
      out.push_back({Kind::compute, actions[i]});
      const int peer = other_rank(rank, target_stage(schedule_, rank, actions[i]));
      if (peer >= 0)
        out.push_back({actions[i].op == Op::forward ? Kind::send_activation : Kind::send_gradient, actions[i], peer});
    }
    return out;
  }

 private:
  /// One direction between two ranks: the messages in the order in which they are sent, and the number already
  /// received.
  struct MessageQueue {
    std::vector<std::size_t> messages;  ///< by item
    std::size_t received = 0;
  };

  void list_messages(int rank) {
    const auto& actions = schedule_.actions[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const auto& action = actions[i];
      const int source = source_stage(schedule_, rank, action);
      if (source >= 0) reader_[schedule_.item(action.op, source, action.microbatch)] = static_cast<int>(i);
      const int peer = other_rank(rank, target_stage(schedule_, rank, action));
      if (peer < 0) continue;
      const int stage = schedule_.stage_of(rank, action.chunk);
      queues_[{rank, peer}].messages.push_back(schedule_.item(action.op, stage, action.microbatch));
    }
  }

  /// Posts the receive that `action` needs, unless it is posted, and before it those that the peer sends earlier.
  void receive_for(int rank, const Action& action, Program& out) {
    const int source = source_stage(schedule_, rank, action), peer = other_rank(rank, source);
    if (peer < 0) return;
    const auto needed = schedule_.item(action.op, source, action.microbatch);
    auto& queue = queues_[{peer, rank}];
    while (reader_[needed] >= 0) {
      TRIREME_CHECK(queue.received < queue.messages.size(), "rank {}: no action produces the input of {}", rank,
                    schedule_.describe(rank, action));
      int& reader = reader_[queue.messages[queue.received++]];
      TRIREME_CHECK(reader >= 0, "rank {} receives a message that no action of it uses", rank);
      const auto& reads = schedule_.actions[static_cast<std::size_t>(rank)][static_cast<std::size_t>(reader)];
      out.push_back({reads.op == Op::forward ? Kind::recv_activation : Kind::recv_gradient, reads, peer});
      reader = -1;
    }
  }

  /// The rank of a stage; -1 when it is this rank, or there is no such stage.
  [[nodiscard]] int other_rank(int rank, int stage) const {
    if (stage < 0) return -1;
    const int other = schedule_.location_of(stage).rank;
    return other == rank ? -1 : other;
  }

  const Schedule& schedule_;
  std::size_t ahead_;        ///< how many actions before its use a receive is posted
  std::vector<int> reader_;  ///< by item: the action of its rank that needs it; -1: none, or its receive is posted
  std::map<std::pair<int, int>, MessageQueue> queues_;  ///< by (sender, receiver)
};

}  // namespace

const char* name(Kind kind) {
  static constexpr std::array kNames{"compute", "send_activation", "recv_activation", "send_gradient", "recv_gradient"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::vector<Program> lower(const Schedule& schedule, Posting posting) {
  Lowering lowering(schedule, posting);
  std::vector<Program> out;
  for (int rank = 0; rank < schedule.ranks; ++rank) out.push_back(lowering.program_of(rank));
  return out;
}

}  // namespace trireme::pipeline
