// The state behind an Accelerator and the handles that its prepare() returns. Internal to core/booster.
//
// The batch in progress is that of the loader whose loop runs. Loops may nest: an evaluation inside the training loop
// hides the training batch until it ends.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/booster/accelerator.h"
#include "core/booster/booster.h"
#include "core/data/loader.h"
#include "core/optim/lr_schedule.h"

namespace trireme {

struct LoaderState {
  /// Where a loop stands.
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t batch = 0;  ///< batches of the epoch that the program has got
  };

  LoaderState(AcceleratorState& accelerator, const DataLoaderOptions& wanted);

  /// @throws UsageError after free_memory()
  [[nodiscard]] data::Loader& prepared() const;
  void start();
  /// Gets the next batch; false at the end of the epoch.
  bool advance();
  /// The samples of batches [begin, end) over all ranks.
  [[nodiscard]] std::int64_t samples_of(std::int64_t begin, std::int64_t end) const;
  /// Begins to accumulate: returns whether the current batch ends its group.
  bool accumulate();

  AcceleratorState* accelerator;  ///< null after free_memory()
  std::unique_ptr<data::Loader> loader;
  std::int64_t steps_of_accumulation;

  Position at{};       ///< of the loop
  Position stepped{};  ///< after the last optimizer step, for a checkpoint
  bool running = false;
  data::Batch batch{};             ///< current
  std::int64_t local_samples = 0;  ///< of this rank in the current batch; 0 when it stands in for none
  bool sync = true;                ///< whether the current batch's gradients are reduced and the optimizer steps
  std::int64_t weight = 1;         ///< samples over which the loss of the current step is the mean
};

struct AcceleratorState {
  AcceleratorState(std::unique_ptr<comm::World> own, comm::World& on, AcceleratorOptions given);
  ~AcceleratorState();

  /// @throws UsageError unless a model is prepared
  Boosted& prepared();
  /// The loader whose loop runs; null between loops.
  [[nodiscard]] LoaderState* active() const { return running.empty() ? nullptr : running.back(); }
  [[nodiscard]] bool syncs() const { return active() == nullptr || active()->sync; }
  [[nodiscard]] const comm::Group& data_group() const { return booster->data_group(); }
  [[nodiscard]] double lr() const { return schedule ? schedule->lr(schedule_step) : base_lr; }
  /// Forgets the gradients of an accumulation that will not be finished.
  void drop_accumulated();
  /// Ends everything that was prepared.
  void release();

  std::unique_ptr<comm::World> own_world;  ///< null for a world of the program's
  comm::World& world;
  AcceleratorOptions options;
  Log log;
  std::unique_ptr<Booster> booster;
  Boosted run;
  std::vector<std::shared_ptr<LoaderState>> loaders;  ///< in the order of their preparation
  std::vector<LoaderState*> running;                  ///< the innermost loop last
  std::unique_ptr<optim::LrSchedule> schedule;        ///< null without a scheduler
  std::int64_t schedule_step = 0;
  double base_lr = 0;
  std::optional<double> clip;  ///< of the next step
  StepResult last_step{};
  bool accumulated = false;  ///< gradients of an unfinished accumulation exist
};

}  // namespace trireme
