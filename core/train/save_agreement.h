// SaveAgreement: when all ranks know that a part of a background save has ended on all of them. The ranks' numbers come
// with the loss of each step (TrainStep::save). On a GPU each rank reads them some steps later, and not all in the same
// step, so that an end counts only after the step in which every rank must have read it.
#pragma once

#include <cstdint>

namespace trireme::train {

class SaveAgreement {
 public:
  enum class End { none, done, failed };

  /// A part begins; steps that are launched later tell when it ends.
  void begin() {
    begun_at_ = launched_;
    end_ = End::none;
  }
  /// The numbers of ranks that were busy and that had failed before a step; the steps come in order.
  void read(double busy, double failed) {
    const auto number = read_++;
    if (number < begun_at_ || end_ != End::none || (busy != 0 && failed == 0)) return;
    end_ = failed != 0 ? End::failed : End::done;
    ended_at_ = number;
  }
  /// Call it after each launched step. `lag`: of the launched steps, those that a rank may not have read yet. The same
  /// on every rank.
  End launched(std::int64_t lag) {
    const auto number = launched_++;
    return end_ != End::none && ended_at_ + lag <= number ? end_ : End::none;
  }

 private:
  std::int64_t launched_ = 0, read_ = 0, begun_at_ = 0, ended_at_ = 0;
  End end_ = End::none;
};

}  // namespace trireme::train
