// RunConfig: the complete, checked contents of a user's file. Each struct is a section. Where a key of a section
// selects something by name, the keys of the section that belong to it are in that thing's own options.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/booster/train_options.h"
#include "core/config/table.h"
#include "core/data/loader.h"
#include "core/nn/lora_options.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizer.h"
#include "core/setup/kinds.h"
#include "core/tune/tune_options.h"

namespace trireme::train {

struct RunSection {
  std::string dir = "runs/run";
  std::int64_t seed = 42;
  std::string device = "auto";         // auto | cpu | cuda
  std::string resume = "auto";         // "auto" | "must" | "never" | the folder of a checkpoint or of a run
  bool deterministic = false;          // bit-equal repeats on GPUs, too (core/setup/deterministic.h)
  std::int64_t threads = 0;            // compute threads per rank; 0: 1 with several CPU ranks per host, else all cores
  std::string bind = "auto";           // auto | none: cores of ranks with GPUs
  std::int64_t checkpoint_every = 0;   // steps; 0: at the end of each epoch only
  std::int64_t keep_checkpoints = 2;   // number of newest checkpoints to keep; 0: none is written
  bool async_save = false;             // write checkpoints beside the training
  std::string on_save_error = "stop";  // stop | continue
  std::int64_t stop_grace_s = 0;       // after a signal to stop; 0: no limit
  double memory_mb = 0;                // limit for a CPU rank's tensors; 0: no limit
  std::optional<double> peak_tflops;   // of one rank; unset: known for some GPUs
  bool forecast = true;                // of a step, at the start (core/plan/forecast.h)
  std::string machine{};               // a file with rates, for the forecast of a step's time; "": none
  bool rank_logs = false;              // RUN/logs/rank-N.log
  std::int64_t rank_times_every = 0;   // optimizer steps between two reports on slow ranks; 0: none
  bool tensorboard = false;            // RUN/tensorboard
  std::string export_weights = "last";      // last | best
  std::int64_t checkpoint_shard_mb = 2048;  // of a file in a checkpoint
  std::int64_t export_shard_mb = 0;         // of a file in RUN/model; 0: one file
  std::optional<std::string> export_dtype;  // of RUN/model; unset: that of the training's weights
  std::int64_t compare_replicas_every = 0;  // steps; 0: never
  std::vector<std::string> extensions{};    // shared objects that add kinds
};

/// [comm]: the ranks' communication.
struct CommSection {
  double init_timeout_s = 600;  // for the meeting of the ranks, and the first operation of each group
  double timeout_s = 600;       // for every other operation
  bool check = false;           // compare each operation between the ranks before it runs
};

/// The keys that [model] has for all models.
struct ModelSection {
  std::string name = "vit";
  std::string weights = "";
};

/// [lora]: which layers get adapters, and which modules are trained besides.
struct LoraSection : nn::LoraOptions {
  std::string weights = "";        // adapters in PEFT's format to start from
  bool merge = false;              // also write RUN/model-merged
  std::set<std::string> loaded{};  // the model's parameters that the adapters of `weights` hold; exports have them too
};

/// [[data.mix]]: further data, whose training samples are mixed with those of [data] (core/data/mixture.h).
struct MixSection {
  std::string name{};  // "": that of [data]
  double weight = 1;
  data::DatasetFactory source{};
  config::Table written{};  // for messages
};

/// The keys that [data] has for all data sets.
struct DataSection : data::LoadingOptions {
  std::string name = "image_folder";
  double weight = 1;                        // of its own training samples
  std::optional<double> balance_classes{};  // 0 to 1, of the training samples of each source; unset: 0
  data::DatasetFactory source{};            // of this name, with its own options; empty: the file has no [data]
  std::vector<MixSection> mix{};
};

inline constexpr const char* kOomStop = "stop";
inline constexpr const char* kOomRetry =
    "retry";  ///< the launcher starts the training again (apps/launcher/restarts.h)

/// All of [train] but the task's own keys: those that Booster reads, and those for the command's own loop.
struct TrainSection : TrainOptions {
  std::optional<double> max_seconds;
  std::optional<std::int64_t> eval_batch;  // samples of a rank per forward pass in evaluation; unset: 4 x micro_batch
  std::optional<std::string> task;         // unset: what the loaded weights are for, else what the model is for
  std::optional<std::string> best;         // validation.METRIC; unset: the task's first metric
  std::optional<std::int64_t> eval_every;  // optimizer steps; unset: at the end of each epoch only
  std::optional<std::int64_t> patience;    // evaluations without a better one after which the training stops
  std::int64_t max_nonfinite = 10;         // bad steps in a row, or returns to a checkpoint, before the run ends
  double loss_spike = 0;                   // deviations above the median; 0: losses are not compared
  std::string on_loss_spike = "warn";      // warn | stop | rollback
  std::string on_oom = kOomStop;
};

struct OptimizerSection : optim::OptimizerOptions {
  std::string name = "hybrid_adam";
};

struct ScheduleSection : optim::LrScheduleOptions {
  std::string name = "constant";
};

/// The value with which parallel.plugin and train.micro_batch leave the choice to the plan (core/plan/auto_layout.h).
inline constexpr const char* kAuto = "auto";

struct ParallelSection {
  std::string plugin = "torch_ddp";                                          // a built-in name or a path to a .so
  std::map<std::string, std::optional<std::int64_t>> sizes = unset_sizes();  // of the axes that have a key here
  std::optional<std::int64_t> zero;
  std::optional<std::string> schedule, sp_mode;

  static std::map<std::string, std::optional<std::int64_t>> unset_sizes();
};

const Fields<RunSection>& run_fields();
const Fields<CommSection>& comm_fields();
const Fields<ModelSection>& model_fields();
const Fields<LoraSection>& lora_fields();
const Fields<DataSection>& data_fields();
const Fields<MixSection>& mix_fields();
const Fields<TrainSection>& train_section_fields();
const Fields<OptimizerSection>& optimizer_section_fields();
const Fields<ScheduleSection>& schedule_section_fields();
const Fields<ParallelSection>& parallel_fields();

/// The tables of these sections, in the order of a user's file. [parallel] is last.
std::vector<const FieldTable*> section_tables();

struct RunConfig {
  config::Table root;  ///< the user's file with overrides applied; gives origins for later errors
  RunSection run;
  CommSection comm;
  ModelSection model;
  std::optional<LoraSection> lora;  ///< unset without the section
  DataSection data;
  TrainSection train;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  tune::TuneSection optimize;
  ParallelSection parallel;
  Kinds kinds;                    ///< what the file can select, extensions included
  bool auto_micro_batch = false;  ///< train.micro_batch is "auto", and unset in `train`

  config::Table model_keys;  ///< the model's own part of [model], which the model kind reads
  config::Table task_keys;   ///< the task's own part of [train], which is read when the task is known
  /// [plugin.NAME] of the chosen plugin, or null if the user wrote none.
  [[nodiscard]] const config::Table* plugin_table(const std::string& name) const;
};

/// Loads the file's extensions, fills every section and checks the rules that involve several keys. Uses no network or
/// process group. @throws ConfigError.
RunConfig from_table(config::Table root, Kinds kinds);
/// Selects the data set of a file without [data], too: says what it lacks. @throws ConfigError
void require_data(RunConfig& config);
/// The task of this name, with the options of the file. @throws ConfigError
TaskKind select_task(const RunConfig& config, const std::string& name);

/// Prints the resolved file: every key; loading it gives an equal RunConfig. `task`: its own rows follow those of
/// [train]; null: these are printed as they were written. The owners of the model's own keys and of the chosen plugin's
/// section may pass their lines (`model_rows` without a [header], `plugin_section` with one).
std::string print(const RunConfig& config, const TaskKind* task, const std::string& model_rows,
                  const std::string& plugin_section);

}  // namespace trireme::train
