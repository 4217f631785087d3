// FirstReport: from which step on all ranks know that one of them has reported something. The report comes with the
// numbers of a step, which on a GPU each rank reads some steps later, and not all in the same step.
#pragma once

#include <cstdint>

namespace trireme::train {

class FirstReport {
 public:
  /// Takes the numbers of the next step: whether any rank has reported with it.
  void read(bool reported) {
    if (reported && at_ < 0) at_ = read_;
    ++read_;
  }
  /// Call it after each launched step. `lag`: of the launched steps, those that a rank may not have read yet. True from
  /// the step on in which every rank must have read the first report: the same one on all of them.
  bool launched(std::int64_t lag) {
    const auto number = launched_++;
    return at_ >= 0 && at_ + lag <= number;
  }

 private:
  std::int64_t launched_ = 0, read_ = 0;
  std::int64_t at_ = -1;  ///< the number of steps before the first one with a report; -1: there is none
};

}  // namespace trireme::train
