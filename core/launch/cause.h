// Which rank's failure is the cause of a failed run, and what is said about it. Uses nothing of LibTorch.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/local_ranks.h"

namespace trireme::ranks {

enum class Ranks {
  of_trireme,      ///< trireme-worker
  of_any_program,  ///< a program that `trireme launch` or spawn() starts
};

/// How a rank has failed, the ways that explain the others first.
enum class End {
  killed,     ///< a signal ended it
  reported,   ///< an error of its own, which it has reported
  exited,     ///< an exit code, and no report
  lost_peer,  ///< one of these two, with the code of a communication error: because of another rank
};

struct Cause {
  int rank = 0;
  End end = End::exited;
  int code = 0;           ///< its exit code; 128 + n if signal n ended it
  bool is_clear = false;  ///< what other ranks may still report explains no more
};

/// The failure that explains the others, of those that are known; none: no rank has failed. Of several, the lowest
/// rank's: errors that all ranks have are told as its own. What a process reports that the rank has started, such as
/// its shell's, counts once the rank has ended, if that has failed too.
std::optional<Cause> cause_of(const std::vector<RankState>& ranks);
/// The same of those errors alone that ranks have reported as their own.
std::optional<Cause> reported_cause_of(const std::vector<RankState>& ranks);

/// Whether a rank has failed or ended: nothing more of it explains a failure.
bool is_settled(const RankState& rank);

/// How long the ranks get to fail or end by themselves once one of them has failed.
inline constexpr std::chrono::milliseconds kSettleTime{300};

/// "PROGRAM: rank 2: MESSAGE" without the program: rank 0's message, and one that all ranks have, needs no rank.
std::string message_of(int rank, const Failure& failure);

/// "rank 2 was killed by signal 9, most often because ...": what happened to `who`, one of `size` ranks, and the
/// remedy.
std::string ended_by_signal(const std::string& who, int signal, Ranks ranks, int size);

}  // namespace trireme::ranks
