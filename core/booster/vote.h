// Votes: what a rank tells all others with the loss of each step, in the one reduction that every step makes, so that
// it costs no message of its own. The way of a vote:
//   1. It is cast before a step by Booster::vote(), in core/train by StopOnRequest (stop.h) and RunSaves (run_saves.h).
//   2. Boosted::train_step() sums it over the ranks by StepReduction, on the device, into TrainStep::votes.
//   3. TrainingLoop::read_back() gets the sums with the step's other numbers, on a GPU some steps later and not on all
//      ranks in the same step, and hands them to those that have cast it: StepLog::votes.
//   4. They act after the step from which on all ranks must have read it, the same one on all of them: LaggedVote.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/comm/group.h"
#include "core/comm/mesh.h"

namespace trireme {

enum class Vote {
  stop_by_signal,  ///< this rank got a signal that asks for a stop
  stop_by_time,    ///< its clock has passed the limit
  saving,          ///< it still writes its part of a checkpoint beside the training
  save_failed,     ///< it could not write that part
  unrecorded,      ///< it could not record the run, with which error all should end
};
inline constexpr std::size_t kVotes = 5;

/// Before a step, the numbers of ranks with each vote.
struct VoteCounts {
  std::array<double, kVotes> ranks{};
  [[nodiscard]] bool any(Vote vote) const { return ranks[static_cast<std::size_t>(vote)] != 0; }
};

/// From which step on all ranks know of the first yes since begin(): the same step on all of them.
class LaggedVote {
 public:
  /// Steps that are launched from now on count, those before do not.
  void begin() {
    begun_ = launched_;
    yes_ = -1;
  }
  /// The steps come in order.
  void read(bool yes) {
    const auto step = read_++;
    if (yes && yes_ < 0 && step >= begun_) yes_ = step;
  }
  /// Call it after each launched step. `lag`: of the launched steps, those that a rank may not have read yet.
  bool launched(std::int64_t lag) {
    const auto step = launched_++;
    return yes_ >= 0 && yes_ + lag <= step;
  }

 private:
  std::int64_t launched_ = 0, read_ = 0;
  std::int64_t begun_ = 0, yes_ = -1;  ///< numbers of steps; yes_ is -1 while there is none
};

/// The one reduction over all ranks that a training step makes in any layout: it sums the ranks' parts of the loss, and
/// counts their votes.
class StepReduction {
 public:
  explicit StepReduction(comm::Mesh& mesh);
  /// Holds until the next call for this vote; in the beginning all are false.
  void vote(Vote vote, bool yes) { votes_[static_cast<std::size_t>(vote)] = yes; }

  /// The sums over all ranks, on the device and valid after `sent` is waited for.
  struct Sums {
    at::Tensor loss;   ///< 0-dim
    at::Tensor votes;  ///< [kVotes]
    comm::Work sent;
  };
  /// `part`: this rank's part of the loss, 0-dim. Where ranks have copies of one part, such as along tp, the first
  /// one's counts. Collective over the world.
  Sums start(const at::Tensor& part);

 private:
  const comm::Group& group_;
  bool has_copy_;  ///< another rank's part counts
  std::array<bool, kVotes> votes_{}, on_device_{};
  at::Tensor numbers_;  ///< [kVotes], on_device_ as numbers
};

}  // namespace trireme
