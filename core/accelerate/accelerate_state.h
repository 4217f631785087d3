// The state behind an Accelerator and the handles that its prepare() returns. Internal to core/accelerate.
//
// The batch in progress is that of the loader whose loop runs. Loops may nest: an evaluation inside the training loop
// hides the training batch until it ends, by itself or because the program leaves it (break, return, an exception).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/accelerate/accelerator.h"
#include "core/booster/booster.h"
#include "core/data/loader.h"
#include "core/optim/lr_schedule.h"

namespace trireme {

struct LoaderState;

/// One loop over a loader, shared by the copies of its iterator. It ends when they are gone, or when the epoch ends.
struct LoaderLoop {
  explicit LoaderLoop(std::shared_ptr<LoaderState> over);
  ~LoaderLoop();
  LoaderLoop(const LoaderLoop&) = delete;
  /// Gets the next batch; false at the end, also when something else has ended the loop.
  bool advance();

  std::shared_ptr<LoaderState> loader;
};

struct LoaderState {
  /// Where a loop stands.
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t batch = 0;  ///< batches of the epoch that the program has got
  };

  LoaderState(AcceleratorState& accelerator, const DataLoaderOptions& wanted);

  /// @throws UsageError after free_memory()
  [[nodiscard]] data::Loader& prepared() const;
  void start(const LoaderLoop& by);
  /// Gets the next batch; false at the end of the epoch.
  bool advance();
  /// Ends the loop, if there is one: the next one runs the next epoch.
  void end();
  /// Selects where the next loop starts, and ends the one that runs.
  void set_position(Position next);
  /// The samples of batches [begin, end) over all ranks.
  [[nodiscard]] std::int64_t samples_of(std::int64_t begin, std::int64_t end) const;
  /// Begins to accumulate: returns whether the current batch ends its group.
  bool accumulate();

  AcceleratorState* accelerator;  ///< null after free_memory()
  std::unique_ptr<data::Loader> loader;
  std::int64_t steps_of_accumulation;

  Position at{};                     ///< of the loop
  Position stepped{};                ///< after the last optimizer step, for a checkpoint
  const LoaderLoop* loop = nullptr;  ///< that runs
  data::Batch batch{};               ///< current
  std::int64_t local_samples = 0;    ///< of this rank in the current batch; 0 when it stands in for none
  bool asked = false;                ///< whether the program has called accumulate() for the current batch
  bool sync = true;                  ///< whether the current batch's gradients are reduced and the optimizer steps
  std::int64_t weight = 1;           ///< samples over which the loss of the current step is the mean
};

struct AcceleratorState {
  AcceleratorState(std::unique_ptr<comm::World> own, comm::World& on, AcceleratorOptions given);
  ~AcceleratorState();

  /// @throws UsageError unless a model is prepared
  ModelAndOptimizer& prepared();
  /// The loader whose loop runs; null between loops.
  [[nodiscard]] LoaderState* active() const { return running.empty() ? nullptr : running.back(); }
  [[nodiscard]] bool syncs() const { return active() != nullptr ? active()->sync : accumulating == nullptr; }
  /// Whether gradients of an accumulation exist that the program can still finish.
  [[nodiscard]] bool accumulates() const { return accumulating != nullptr && accumulating->loop != nullptr; }
  [[nodiscard]] const comm::Group& data_group() const { return booster->data_group(); }
  [[nodiscard]] double lr() const { return schedule ? schedule->lr(schedule_step) : base_lr; }
  /// Forgets the gradients of an accumulation whose loop has ended before it.
  void drop_unfinished();
  /// Ends everything that was prepared.
  void release();

  std::unique_ptr<comm::World> own_world;  ///< null for a world of the program's
  comm::World& world;
  AcceleratorOptions options;
  Log log;
  std::unique_ptr<Booster> booster;
  ModelAndOptimizer run;
  std::vector<std::shared_ptr<LoaderState>> loaders;  ///< in the order of their preparation
  std::vector<LoaderState*> running;                  ///< the innermost loop last
  std::unique_ptr<optim::LrSchedule> schedule;        ///< null without a scheduler
  std::int64_t schedule_step = 0;
  double base_lr = 0;
  std::optional<double> clip;  ///< of the next step
  StepResult last_step{};
  const LoaderState* accumulating = nullptr;  ///< the loader of whose batches an accumulation has gradients
};

}  // namespace trireme
