// RunConfig: the complete, checked contents of a user's file. Sections whose owner is selected by name ([model] except
// its common keys, [plugin.NAME]) stay Tables until the owner reads them with its own field table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/config/table.h"

namespace trireme::config {

struct RunOptions {
  std::string dir = "runs/run";
  std::int64_t seed = 42;
  std::string device = "auto";        // auto | cpu | cuda
  std::string resume = "";            // "" | "auto" | a checkpoint folder
  std::int64_t threads = 0;           // compute threads per rank; 0: 1 with several CPU ranks per host, else all cores
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end of each epoch only
  std::int64_t keep_checkpoints = 2;  // number of newest checkpoints to keep; 0: none is written
  double timeout_s = 600;             // a collective that waits longer is an error
  double memory_mb = 0;               // limit for a CPU rank's tensors; 0: no limit
  std::string export_weights = "last";  // last | best
};

/// How a rank's samples are prepared; part of [data].
struct LoadingOptions {
  std::int64_t workers = 1;   // decoding threads per rank
  std::int64_t prefetch = 2;  // steps prepared in advance
};

struct DataOptions : LoadingOptions {
  std::string name = "image_folder";  // image_folder | leaves | tensors
  std::string path = "";
  std::optional<std::int64_t> image_size;  // pixels; tensors: taken from the file; others: 224
  std::vector<double> mean = {0.5, 0.5, 0.5};
  std::vector<double> std = {0.5, 0.5, 0.5};
  bool flip = false;
  bool random_resized_crop = false;
  std::vector<double> crop_scale = {0.08, 1.0};
  double cache_mb = 512;                // decoded images kept in memory, per rank
  std::string on_bad_sample = "error";  // error | skip
  std::int64_t images = 900;            // leaves: number of generated images over all splits
  std::int64_t leaf_seed = 7;           // leaves: seed
};

/// The part of [train] that Booster reads: the number of steps, how a step runs, and the length of the lr schedule.
struct TrainOptions {
  std::int64_t epochs = 3;
  std::optional<std::int64_t> max_steps{};
  std::int64_t global_batch = 32;
  std::optional<std::int64_t> micro_batch{};  // samples of a rank per forward pass; unset: its whole share
  std::string precision = "fp32";             // fp32 | tf32 | bf16 | fp16 | fp64
  double max_norm = 0;                        // 0: no clipping
  bool shuffle = true;
  bool drop_last = false;
  bool recompute = false;
  // Dynamic loss scale of fp16.
  double initial_scale = 65536, min_scale = 1, max_scale = 4294967296.0, growth_factor = 2, backoff_factor = 0.5;
  std::int64_t growth_interval = 1000, hysteresis = 2;
};

/// All of [train]: TrainOptions and the keys for the command's own loop, loss and evaluation.
struct RunTrainOptions : TrainOptions {
  std::optional<double> max_seconds;
  std::optional<std::int64_t> eval_batch;  // samples of a rank per forward pass in evaluation; unset: 4 x micro_batch
  std::optional<std::string> task;         // unset: what the loaded weights are for, else what the model is for
  std::optional<std::string> best;         // validation.METRIC; unset: the task's first metric
  std::int64_t topk = 5;
  double label_smoothing = 0;
};

struct OptimizerOptions {
  std::string name = "hybrid_adam";  // hybrid_adam | sgd
  double lr = 1e-3;
  double weight_decay = 0;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  bool adamw = true;                    // decoupled weight decay; false: Adam with L2
  double momentum = 0;                  // sgd
  bool nesterov = false;                // sgd
  double dampening = 0;                 // sgd
  std::vector<std::string> no_decay{};  // name patterns without weight decay
  std::vector<std::string> freeze{};    // name patterns that are not trained
};

struct LrScheduleOptions {
  std::string name = "constant";  // constant|linear|cosine|step|multi_step|polynomial|one_cycle
  std::optional<std::int64_t> warmup_steps{};
  double warmup_ratio = 0;
  double min_lr_factor = 0;                // the floor of linear, cosine and polynomial, as a fraction of lr
  std::int64_t step_size = 0;              // step: steps between drops
  std::vector<std::int64_t> milestones{};  // multi_step: steps of the drops
  double gamma = 0.1;                      // step, multi_step: factor of each drop
  double power = 1;                        // polynomial
  double div_factor = 25, final_div_factor = 1e4, pct_start = 0.3;  // one_cycle
};

struct ParallelOptions {
  std::string plugin = "torch_ddp";  // a built-in name or a path to a .so
  std::optional<std::int64_t> dp, pp, sp, tp, zero;
  std::optional<std::string> schedule, sp_mode;
};

/// The keys that [model] has for all models; the other keys of the section belong to the model.
struct ModelOptions {
  std::string name = "vit";
  std::string weights = "";
};

const Fields<RunOptions>& run_fields();
const Fields<DataOptions>& data_fields();
const Fields<RunTrainOptions>& train_fields();
/// The rows of train_fields() and data_fields() for the parts that a program fills in.
const Fields<TrainOptions>& booster_train_fields();
const Fields<LoadingOptions>& loading_fields();
const Fields<OptimizerOptions>& optimizer_fields();
const Fields<LrScheduleOptions>& lr_schedule_fields();
const Fields<ParallelOptions>& parallel_fields();
const Fields<ModelOptions>& model_fields();

/// Checks options that a program has filled in by the rules of a file, for single keys and between keys. An error names
/// the key: "optimizer.lr = -1: it must be at least 0". @throws ConfigError
void check_options(const TrainOptions& options);
void check_options(const OptimizerOptions& options);
void check_options(const LrScheduleOptions& options);
void check_options(const LoadingOptions& options);

struct RunConfig {
  Table root;  ///< the user's file with overrides applied; gives origins for later errors
  RunOptions run;
  ModelOptions model;
  DataOptions data;
  RunTrainOptions train;
  OptimizerOptions optimizer;
  LrScheduleOptions lr_schedule;
  ParallelOptions parallel;

  /// [model] without its common keys, for the model's own field table; never null.
  [[nodiscard]] const Table& model_table() const { return model_rest; }
  /// [plugin.NAME] of the chosen plugin, or null if the user wrote none.
  [[nodiscard]] const Table* plugin_table(const std::string& name) const;

  Table model_rest;
};

/// Fills every section from a parsed file and checks rules that involve several keys. Uses no network or process group.
/// @throws ConfigError.
RunConfig from_table(Table root);

/// Prints the resolved file: every key of the core sections; loading it gives an equal RunConfig. The owners of the
/// model's own keys and of the chosen plugin's section may pass their lines (`model_rows` without a [header],
/// `plugin_section` with one); otherwise these are printed as they were written.
std::string print(const RunConfig& config, const std::string& model_rows = "", const std::string& plugin_section = "");

}  // namespace trireme::config
