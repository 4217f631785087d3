// The flight record: what a rank is doing, in a file that is mapped into its memory and outlives it. This file has the
// layout alone, for the rank that writes it (recorder.h) and for whoever reads it (reader.h). Uses nothing of LibTorch,
// because the launcher has it too.
//
// Every field is written by the rank's own threads with atomic stores, and read by other processes at any time. Texts
// end with a zero byte. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace trireme::comm::flight {

inline constexpr std::uint32_t kMagic = 0x52465254, kVersion = 3;
inline constexpr std::size_t kOperations = 64;  ///< the last ones of a rank
inline constexpr std::size_t kGroups = 64;      ///< the last ones that a rank has joined
inline constexpr int kShownDimensions = 4;

/// entered: the rank has called it. started: it could begin, because its tensors are ready and older ones are done.
enum class OperationState : std::uint8_t { entered, started, completed, failed };

enum class Phase : std::uint8_t { none, start, data, forward, backward, reduce, update, evaluate, save, finish };

/// How a rank has ended. `lost`: an operation has failed. A rank that was killed leaves `none`.
enum class EndKind : std::uint32_t { none, normal, error, lost };

struct OperationRecord {
  std::uint64_t number;  ///< 1 for the process's first operation; 0: none, or being written
  std::uint64_t group;   ///< GroupRecord::id
  std::uint64_t sequence;
  std::int64_t entered, started, completed;
  std::int64_t elements;
  std::array<std::int64_t, kShownDimensions> sizes;  ///< of the first tensor
  std::int32_t dimensions;                           ///< may be more than are shown
  std::int32_t peer;                                 ///< group rank of a send or recv; -1: any rank
  std::int32_t root;                                 ///< group rank; -1: none
  std::uint8_t is_message;                           ///< a send or recv, whose sequence number is this rank's own
  OperationState state;
  std::array<char, 22> op;
  std::array<char, 16> axis, dtype;
};

struct GroupRecord {
  std::uint64_t id;  ///< the same on all members; 0: unused
  std::int32_t rank, size;
  std::array<char, 16> axis;
};

struct RankRecord {
  std::uint32_t magic, version;
  std::int32_t rank, size, pid;
  std::uint32_t padding;
  std::int64_t process_start;   ///< as /proc/PID/stat says it: a later process with this number has another one
  std::uint64_t pid_namespace;  ///< in which `pid` is valid
  std::array<char, 64> host;

  // Where the rank is in its step.
  std::int64_t step;               ///< 1 for the first optimizer step; 0: before it
  std::int32_t microbatch, block;  ///< -1: none
  Phase phase;
  std::array<std::uint8_t, 3> more_padding;

  // Its end.
  EndKind end;
  std::int32_t signal;  ///< that it received in order to end; 0: none
  std::int32_t exit_code;
  std::int64_t ended;
  std::array<char, 1024> text;

  std::uint64_t operations_entered;
  std::uint64_t groups_joined;
  std::array<GroupRecord, kGroups> groups;
  std::array<OperationRecord, kOperations> operations;
};
static_assert(std::is_trivially_copyable_v<RankRecord> && std::is_standard_layout_v<RankRecord>);

/// The folder's control file, where the ranks of a host have no parent of ours: what one of them says for all.
struct Control {
  std::int32_t claimed;       ///< 1 + the rank that prints why the run ends; 0: none
  std::int32_t dying;         ///< the run is being ended after a failure
  std::int32_t printed;       ///< that is on standard error
  std::int32_t request_said;  ///< that a training stops, as a signal asked it to
  std::int32_t end_said;      ///< that a signal has ended the training
};

inline constexpr const char* kFolderVariable = "TRIREME_FLIGHT_FOLDER";
inline constexpr const char* kControlFile = "shared";
inline constexpr const char* kRankFile = "rank-";  ///< and the rank's number

}  // namespace trireme::comm::flight
