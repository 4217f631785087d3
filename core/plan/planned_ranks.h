// The planned ranks of a run: worlds without processes. Each planned rank is a thread of this process that runs the
// engine's own step on the meta device (core/base/planned_device.h), against a clock of its own:
//
//   operators       advance the clock by what the machine takes for them (core/plan/machine.h)
//   collectives     begin when the rank calls them, the others have arrived and the link of their group is free; a wait
//                   moves the clock to their end: that is communication that computation does not hide
//   send, receive   along an axis whose ranks are all planned, such as the stages of a pipeline, the message carries
//                   the sender's clock: a receiver that waits for it is idle (a pipeline's bubble)
//
// A group whose other ranks are not planned does as if they were this one: they have its values, and come when it does.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/world.h"
#include "core/plan/machine.h"

namespace trireme::plan {

/// The time of one planned rank, in seconds since its start.
struct PlannedClock {
  double now = 0;
  double compute = 0;        ///< in operators
  double communication = 0;  ///< in waits for collectives and for messages that are on their way
  double idle = 0;           ///< in waits for messages that were sent late
  double met = 0;            ///< when the rank last exchanged something with others

  void run(double seconds) {
    now += seconds;
    compute += seconds;
  }
  /// Waits for an operation that others began at `begun`, and that ends at `end`.
  void wait(double begun, double end);
};

/// What the planned ranks of one run send to each other.
class PlannedMail {
 public:
  /// `ranks`: the world's ranks that are planned.
  explicit PlannedMail(std::set<int> ranks) : ranks_(std::move(ranks)) {}
  [[nodiscard]] bool has(int rank) const { return ranks_.count(rank) != 0; }

  struct Message {
    double sent = 0, arrives = 0;  ///< on the sender's clock
    at::Tensor values{};           ///< of a tensor on the host; else undefined
  };
  void send(int from, int to, const std::string& channel, Message message);
  /// Waits for the message of this number, from 0, of those that the rank sends on the channel. @throws CommError when
  /// the sender has ended without it
  Message receive(int from, int to, const std::string& channel, std::size_t number);
  /// A rank's thread has ended.
  void leave(int rank);

 private:
  using Way = std::pair<std::pair<int, int>, std::string>;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> ranks_, gone_;
  std::map<Way, std::vector<Message>> messages_;
};

/// The world of one planned rank. Its device is the meta device; its groups move nothing.
class PlannedWorld final : public comm::World {
 public:
  /// `mail`: of all planned ranks of the run; both must outlive the world.
  PlannedWorld(const LaunchInfo& info, const Machine& machine, PlannedMail& mail);

  comm::Group make_group(const std::vector<int>& ranks, const std::string& axis) override;
  comm::Group partition(const std::vector<int>& mine, const std::string& axis) override {
    return make_group(mine, axis);
  }
  void end_first_step() override {}
  [[noreturn]] void abort(int exit_code) override;

  [[nodiscard]] PlannedClock& clock() { return clock_; }

 private:
  PlannedMail& mail_;
  const Machine& machine_;
  PlannedClock clock_;
  int groups_ = 0;
};

}  // namespace trireme::plan
