// ChunkManager: decides which of a rank's model data is on the device under placement_policy = "auto".
//
// The first step is measured (memory_stats.h) with as little model data as possible on the device: chunks are released
// after each use, and optimizer state is in host memory. Evaluations run in the same way, because their memory use is
// not measured. In later steps, gathered chunks stay from one use to the next as long as they fit beside the measured
// memory; when they do not, the chunk whose next use is farthest is released first (L. A. Belady, "A study of
// replacement algorithms for a virtual-storage computer", 1966). All ranks decide alike, because they use the maximum
// of their measurements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/base/memory.h"
#include "core/comm/world.h"
#include "zero/gemini/memory_stats.h"

namespace trireme::zero {

/// The order in which a pass enters blocks. It is recorded in the first pass and predicts the next blocks afterwards.
class BlockOrder {
 public:
  void begin() { at_ = 0; }
  /// Records that `block` is entered. If a pass deviates from the recorded order, the rest is recorded again.
  void enter(const nn::Block* block) {
    if (at_ < order_.size() && order_[at_] != block) order_.resize(at_);
    if (at_ == order_.size()) order_.push_back(block);
    ++at_;
  }
  /// The block that is entered `ahead` (from 1) positions after the current one; null when unknown or past the end.
  [[nodiscard]] const nn::Block* next(std::size_t ahead) const {
    const auto index = at_ + ahead - 1;
    return index < order_.size() ? order_[index] : nullptr;
  }
  /// The number of blocks entered so far in this pass.
  [[nodiscard]] std::size_t entered() const { return at_; }
  /// The blocks of a pass, in order, as recorded so far.
  [[nodiscard]] const std::vector<const nn::Block*>& blocks() const { return order_; }

 private:
  std::vector<const nn::Block*> order_;
  std::size_t at_ = 0;
};

struct ChunkManagerOptions {
  std::string section = "plugin.gemini";  ///< of the configuration that has the keys, for messages
  double warmup_ratio = 0.8;              ///< fraction of the capacity that the first step may need beside model data
  double steady_ratio = 0.9;              ///< fraction of the capacity that may be used in later steps
  double margin_ratio = 0;  ///< fraction of the room left in the tightest period that is used for masters and
                            ///< optimizer state
  std::string stats_path;   ///< "", or a file that is read if it exists, else written
  RunKeys run;              ///< the settings for which the statistics in it are valid
  std::size_t chunks = 0;   ///< number of chunks of the run
};

class ChunkManager {
 public:
  /// `everyone`: the ranks that decide alike. Collective. @throws ConfigError when the device's capacity is unknown, or
  /// the file cannot be used
  ChunkManager(const comm::Group& everyone, const comm::World& world, ChunkManagerOptions options, const Log& log);

  /// The residency of each chunk until training begins: as little as possible on the device. `parts`: bytes of the
  /// slice of each chunk.
  [[nodiscard]] std::vector<Residency> careful(const std::vector<std::int64_t>& parts) const;
  /// Sets the weights that are managed. They must outlive this object.
  void watch(FlatWeights& weights) { weights_ = &weights; }

  /// Whether gathered chunks stay after use, that is, whether statistics exist.
  [[nodiscard]] bool keeps_gathered_chunks() const { return stats_.has_value(); }
  /// A line for the header of a run.
  [[nodiscard]] std::string describe() const;
  /// Hints for the user when the device runs out of memory in training.
  [[nodiscard]] std::vector<std::string> advice() const;

  // A training pass calls these in this order:
  /// A block was entered that needs these chunks, which will be gathered next. Releases chunks to make room for them.
  void enter(const BlockOrder& order, const std::set<std::size_t>& needed);
  /// Whether a chunk may be prefetched.
  [[nodiscard]] bool has_room(std::size_t chunk) const;
  /// To be called before and after every change of the set of gathered chunks, entering a block included.
  void before_change();
  void after_change();
  /// The pass has ended; the update follows.
  void pass_ended() { phase_ = Phase::update; }
  /// The update has ended. `state`: bytes of optimizer state of each chunk. After the first step, decides the residency
  /// of the chunks; apply_residencies() must follow. Collective.
  void step_ended(std::vector<std::int64_t> state);

  /// Moves chunks to their residency for training, or for an evaluation. Returns those that moved.
  std::vector<std::size_t> apply_residencies(bool training);

 private:
  [[nodiscard]] std::vector<std::int64_t> parts() const;
  [[nodiscard]] std::vector<Residency> planned() const;
  [[nodiscard]] std::string current_state() const;
  [[nodiscard]] std::int64_t resident() const;  ///< bytes of model data on the device that is not gathered
  [[nodiscard]] std::int64_t room() const;      ///< bytes available to gathered chunks in this period
  void agree();
  void write_stats();

  comm::Group everyone_;
  memory::Meter meter_;
  ChunkManagerOptions options_;
  Log log_;
  std::int64_t capacity_;
  FlatWeights* weights_ = nullptr;
  std::optional<MemoryStats> stats_;  ///< the same on all ranks
  bool read_ = false;                 ///< stats_ was read from the file
  MemoryStats seen_;                  ///< measurements of the first step on this rank
  std::map<std::size_t, std::int64_t> first_use_;
  std::size_t period_ = 0;
  enum class Phase { none, pass, update } phase_ = Phase::none;
};

}  // namespace trireme::zero
