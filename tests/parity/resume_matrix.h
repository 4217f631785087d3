// The matrix of resumed runs: a training is saved in one layout, most within an epoch, and goes on in another. Its
// parts are trainings as `trireme train` makes them, many in one process; what they hold and report is compared here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/shard/placement.h"
#include "tests/parity/reference.h"

namespace trireme::tests::resume_matrix {

/// A layout on this program's ranks, or on one.
struct Layout {
  std::string name;
  std::vector<std::string> sets = {};  ///< keys, as for --set
  bool alone = false;                  ///< each rank trains by itself, in a world and a folder of its own
  bool resnet = true;  ///< can train a ResNet: has no tensor and sequence parallelism, and synchronises norms
};

/// A training, the same in every layout.
struct Model {
  std::string name, toml;
  std::vector<std::string> sets = {};  ///< further keys, which come after the layout's
};

/// The optimizer step after which a run is saved, within its first epoch of 4 steps (of 3: at its end), and the last
/// one, in its second epoch.
constexpr std::int64_t kSaved = 3, kLast = 5;

/// Numbers with their names, in the order in which a run has reported them.
using Numbers = std::vector<std::pair<std::string, double>>;

/// What a run holds at one step.
struct State {
  /// This rank's slices of weights, buffers, optimizer state and averages, whose names begin with what they are.
  std::vector<shard::Slice> tensors;
  Numbers numbers;  ///< progress, loss of the epoch so far, loss scale
};

struct Trained {
  State begin, saved, end;  ///< before the first step; after step kSaved, if it was saved; after the last step
  Numbers reports;          ///< of the steps after kSaved, of evaluations and epochs
  Named full_saved{};       ///< saved.tensors as full tensors, on every rank
  Named full_end{};
  std::string checkpoint;          ///< of step kSaved, or ""
  std::int64_t staging_bytes = 0;  ///< as RunContext's: 0 without saves in the background
};

/// A training in a layout from its start, saved at kSaved, or from a checkpoint. `folder`: for its files, the same on
/// all ranks. Collective.
Trained train_to_the_end(const Model& model, const Layout& layout, const std::string& folder,
                         const std::string& from = "");

/// The differences of this rank's slices or numbers in one sentence, which names the worst one; "" if there is none.
std::string differing_bits(const State& got, const State& want);
std::string differing_bits(const Numbers& got, const Numbers& want);
std::string differing_bits(const State& got, const Named& want);
/// Those that are above the bound, relative to the full tensor's 2-norm; that is taken to be at least 1e-3 of the norm
/// of all weights, or 1e-6 of that of all moments of a kind: the gradient of a key's bias is only rounding error.
std::string beyond(double bound, const State& got, const Named& want);
std::string beyond(double bound, const Numbers& got, const Numbers& want);

}  // namespace trireme::tests::resume_matrix
