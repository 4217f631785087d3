// Keeper: what of a rank's model data lies on the device under placement_policy = "auto".
//
// The first step is measured (memory_stats.h) while as little as possible lies there: chunks are released after each
// use, optimizer state is in host memory; so does an evaluation, whose needs nobody measured. In between chunks that
// were gathered stay from one use to the next within a step as long as they fit beside what was measured; when they do
// not, the one whose next use is farthest leaves first (L. A. Belady, "A study of replacement algorithms for a
// virtual-storage computer", 1966). All ranks decide alike: of what they measure the largest counts.
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
#include "zero/gemini/block_order.h"
#include "zero/gemini/memory_stats.h"

namespace trireme::zero {

struct ChunkManagerOptions {
  double warmup_ratio = 0.8;  ///< of the capacity: what the first step may need beside model data
  double steady_ratio = 0.9;  ///< of the capacity: what may be used from then on
  double margin_ratio = 0;    ///< of the room that no period needs: for masters and optimizer state
  std::string stats_path;     ///< "", or a file that is read where it is there, else written
  RunKeys run;                ///< what the numbers in it hold for
  std::size_t chunks = 0;     ///< of the run
};

class ChunkManager {
 public:
  /// `everyone`: the ranks that decide alike. Collective. @throws ConfigError when the device's capacity is unknown, or
  /// for the file
  ChunkManager(const comm::Group& everyone, const comm::World& world, ChunkManagerOptions options, const Log& log);

  /// Where chunks live until training begins: as little as possible on the device. `parts`: of each chunk, bytes of
  /// the slice.
  [[nodiscard]] std::vector<Residency> careful(const std::vector<std::int64_t>& parts) const;
  /// The weights that live so. They must outlive this object.
  void watch(FlatWeights& weights) { weights_ = &weights; }

  /// Whether gathered chunks stay after use.
  [[nodiscard]] bool keeps() const { return stats_.has_value(); }
  /// For the header of a run.
  [[nodiscard]] std::string describe() const;
  /// What helps where the device's memory ran out in training.
  [[nodiscard]] std::vector<std::string> advice() const;

  // In this order, by a training pass:
  /// A block was entered that needs these chunks, which will be gathered. Releases what must leave for them.
  void enter(const BlockOrder& order, const std::set<std::size_t>& needed);
  /// Whether a chunk may be gathered ahead of its use.
  [[nodiscard]] bool has_room(std::size_t chunk) const;
  /// Around every change of what is gathered, entering a block included.
  void before_change();
  void after_change();
  /// The pass has ended; the update follows.
  void pass_ended() { phase_ = Phase::update; }
  /// The update has ended. `state`: of each chunk, bytes that the optimizer holds. After the first step: decides where
  /// chunks live; apply_residencies() follows. Collective.
  void step_ended(std::vector<std::int64_t> state);

  /// Moves chunks to where they live in training, or in an evaluation. Returns those that moved.
  std::vector<std::size_t> apply_residencies(bool training);

 private:
  [[nodiscard]] std::vector<std::int64_t> parts() const;
  [[nodiscard]] std::vector<Residency> planned() const;
  [[nodiscard]] std::string current_state() const;
  [[nodiscard]] std::int64_t resident() const;  ///< model data that is not gathered
  [[nodiscard]] std::int64_t room() const;      ///< for gathered chunks in this period
  void agree();

  comm::Group everyone_;
  memory::Meter meter_;
  ChunkManagerOptions options_;
  Log log_;
  std::int64_t capacity_;
  FlatWeights* weights_ = nullptr;
  std::optional<MemoryStats> stats_;  ///< agreed on
  bool read_ = false;                 ///< they come from the file
  MemoryStats seen_;                  ///< of the first step, by this rank
  std::map<std::size_t, std::int64_t> first_use_;
  std::size_t period_ = 0;
  enum class Phase { none, pass, update } phase_ = Phase::none;
};

}  // namespace trireme::zero
