// What a rank's device holds beside model data, as the first step showed it, and which model data may then stay there
// (placement_policy = "auto").
//
// A pass enters blocks one after the other, forward and then backward; each entry begins a period. Model data: slices
// of weights, gathered chunks, masters, optimizer state. All sizes in bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zero/flat_weights.h"

namespace trireme::zero {

/// What figures hold for: keys ("train.precision") and their values as text.
using RunKeys = std::map<std::string, std::string>;

struct MemoryStats {
  struct Period {
    std::int64_t other = 0;     ///< the most that lay there beside model data: activations, gradients, temporaries
    std::int64_t gathered = 0;  ///< of the chunks that the period's block computes with
  };
  std::vector<Period> periods;          ///< of a pass, in order
  std::int64_t update = 0;              ///< beside model data, from the end of the pass to the end of the step
  std::vector<std::int64_t> state;      ///< of each chunk: master that is a copy, optimizer state
  std::vector<std::int64_t> first_use;  ///< of each chunk: a period; as many as there are periods: in none

  /// `run`: what the numbers must hold for; `chunks`: how many the run has. Nothing when there is no file.
  /// @throws ConfigError when it was written for another run (names what differs), or is no such file
  static std::optional<MemoryStats> read(const std::string& path, const RunKeys& run, std::size_t chunks);
  void write(const std::string& path, const RunKeys& run) const;
};

/// Where each chunk lives, under `room` for all that lies on the device:
///   1. slices of weights stay as long as the tightest period has room; those that a pass needs last leave first;
///   2. of what the tightest period has left, `margin` (0..1) goes to masters and optimizer state, chunk by chunk.
/// What is left then is for gathered chunks between their uses (Keeper). `parts`: of each chunk, bytes of the slice.
std::vector<Residency> plan_residence(const MemoryStats& stats, const std::vector<std::int64_t>& parts,
                                      std::int64_t room, double margin);

/// Before anything is known: state in host memory, and slices beyond `room` (those of the last chunks first).
std::vector<Residency> careful_residence(const std::vector<std::int64_t>& parts, std::int64_t room);

}  // namespace trireme::zero
