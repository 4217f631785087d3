// Writes this process's flight record (record.h). The functions may be called from any thread and never block; outside
// a run with several ranks they write to memory that nobody reads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/comm/flight/record.h"
#include "core/launch/launch_info.h"

namespace trireme::comm::flight {

/// A group, as records name it.
struct GroupName {
  std::uint64_t id = 0;
  std::array<char, 16> axis{};
};

/// One recorded operation. A copy refers to the same one. Does nothing once its place in the ring has been reused.
class Entry {
 public:
  Entry() = default;
  Entry(OperationRecord* slot, std::uint64_t number) : slot_(slot), number_(number) {}
  void started();
  void completed();
  void failed();

 private:
  [[nodiscard]] bool valid() const;
  OperationRecord* slot_ = nullptr;
  std::uint64_t number_ = 0;
};

struct Call {
  const char* op;
  std::uint64_t sequence;
  const char* dtype = "";
  std::span<const std::int64_t> sizes{};  ///< of the first tensor
  std::int64_t elements = 0;              ///< of all tensors
  int peer = -1, root = -1;
  bool is_message = false;
};

/// Opens the record of this rank, in the parent's folder or in one that the ranks of the host share. Where there is no
/// place for it, nothing is recorded: that is no error. A process may do this again: then its record is empty again.
void open(const LaunchInfo& info);
/// The ranks are world ranks in group order. `made`: the number of the partition, the same on all ranks.
GroupName join(const std::string& axis, const std::vector<int>& ranks, std::uint64_t made);
Entry enter(const GroupName& group, const Call& call);

// Where this rank is in the training.
void set_step(std::int64_t step);
void set_block(int block);
int block();  ///< -1: none
/// The phase until the end of the scope; then what it was before, unless an exception ends the scope: the record shows
/// where it was.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase, std::int64_t microbatch = -1);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase before_;
  std::int32_t microbatch_;
};
void set_phase(Phase phase);
/// Calls `watch` at the begin and at the end of each PhaseScope that an exception does not end; null ends it. Not while
/// another thread is in one.
void watch_phases(std::function<void(Phase phase, bool begins)> watch);

/// Operations of this process run on a device, whose own watchdog notices failures: any communication error is one.
void note_device_operations();
/// Whether an operation of this process has failed since open(): its peers are late, gone, or made other calls.
bool lost();
/// The run's normal end on this rank. The last rank of a host removes a folder that has no parent.
void end();
/// This rank is about to end with an error. Only the first call counts.
void end_with_error(int exit_code, const std::string& text);
/// To be called by every handler of a signal that may end the process: tells a rank that the launcher ends after
/// another one's death from that one. May be called in a signal handler.
void note_signal(int number);
/// That signal was a request, which does not end the process.
void forget_signal();

/// Whether the run is being ended because a rank has failed: then a SIGTERM is no request to save. Reads files; not for
/// a signal handler.
bool job_is_dying();
/// What the ranks of this host share, in a run of several; null: nothing, or there is a parent. Stays where it is. Who
/// says what without a parent of ours: see failure.h and stopping.h.
Control* shared_control();
/// The folder of this rank's record; "" if there is none.
std::string folder();

}  // namespace trireme::comm::flight
