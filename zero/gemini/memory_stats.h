// The memory that a rank's device needs beside model data, as measured in the first step, and the model data that fits
// beside it (placement_policy = "auto").
//
// A pass enters blocks one after another, forward and then backward; each entry begins a period. Model data are slices
// of weights, gathered chunks, masters and optimizer state. All sizes are in bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zero/flat_weights.h"

namespace trireme::zero {

/// The settings for which measurements are valid: keys ("train.precision") and their values as text.
using RunKeys = std::map<std::string, std::string>;

struct MemoryStats {
  struct Period {
    std::int64_t other = 0;     ///< the peak beside model data: activations, gradients, temporaries
    std::int64_t gathered = 0;  ///< the chunks that the period's block uses
  };
  std::vector<Period> periods;          ///< of a pass, in order
  std::int64_t update = 0;              ///< the peak beside model data, from the end of the pass to the end of the step
  std::vector<std::int64_t> state;      ///< of each chunk: bytes of a master that is a copy, and of optimizer state
  std::vector<std::int64_t> first_use;  ///< of each chunk: the first period that uses it; the number of periods if none
                                        ///< does

  /// `run`: the settings for which the measurements must be valid; `chunks`: the number of chunks of the run;
  /// `section`: of the configuration that names the file, for messages. Returns nothing when there is no file. @throws
  /// ConfigError when the file was written for another run (lists the differences) or is invalid
  static std::optional<MemoryStats> read(const std::string& path, const RunKeys& run, std::size_t chunks,
                                         const std::string& section);
  void write(const std::string& path, const RunKeys& run) const;
};

/// Plans the residency of each chunk, given `room` bytes on the device:
///   1. slices of weights stay on the device if the tightest period has room for them; those that a pass needs last are
///      offloaded first;
///   2. the fraction `margin` (0..1) of what is left in the tightest period goes to masters and optimizer state,
///      chunk by chunk.
/// The rest is for gathered chunks between their uses (ChunkManager). `parts`: bytes of the slice of each chunk.
std::vector<Residency> plan_residency(const MemoryStats& stats, const std::vector<std::int64_t>& parts,
                                      std::int64_t room, double margin);

/// The plan before anything is measured: masters and optimizer state are in host memory, and so are the slices that
/// exceed `room` (those of the last chunks).
std::vector<Residency> careful_residency(const std::vector<std::int64_t>& parts, std::int64_t room);

}  // namespace trireme::zero
