// TrainingArguments and TrainerInputs: what a program's Trainer trains, and how. The arguments have the names of
// Hugging Face's; each is a key of the file under another name, with the same rules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/booster/plugin_loader.h"
#include "core/data/loader.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizers.h"
#include "core/setup/run_setup.h"
#include "core/train/callback.h"

namespace trireme::train {

/// When something is done in a training.
enum class Strategy { no, steps, epoch };

struct TrainingArguments {
  std::string output_dir{};                      ///< the run's folder (core/resume/run_folder.h); required
  std::string plugin = "torch_ddp";              ///< a built-in name, or the path of a .so
  PluginOptions plugin_options{};                ///< keys of [plugin.NAME]; they win over the arguments below
  std::int64_t per_device_train_batch_size = 8;  ///< samples of a rank per forward pass
  std::int64_t per_device_eval_batch_size = 8;
  std::int64_t gradient_accumulation_steps = 1;  ///< forward passes of a rank per optimizer step
  std::int64_t num_train_epochs = 3;
  std::optional<std::int64_t> max_steps{};
  std::string precision = "fp32";  ///< fp32 | tf32 | bf16 | fp16 | fp64
  double max_grad_norm = 1;        ///< 0: no clipping
  double learning_rate = 5e-5, weight_decay = 0;
  std::vector<std::string> no_decay{};  ///< name patterns of parameters without weight decay
  optim::OptimizerFactory optim = optim::hybrid_adam();
  optim::CurveFactory lr_scheduler = optim::linear();
  double warmup_ratio = 0;
  Strategy eval_strategy = Strategy::epoch;  ///< without TrainerInputs::eval nothing is evaluated
  std::int64_t eval_steps = 500;             ///< optimizer steps
  Strategy save_strategy = Strategy::epoch;
  std::int64_t save_steps = 500;
  std::int64_t save_total_limit = 2;  ///< number of newest checkpoints to keep
  bool async_save = false;            ///< write them beside the training ([run] async_save)
  std::int64_t logging_steps = 0;     ///< optimizer steps between lines on the screen; 0: none within an epoch
  bool tensorboard = false;           ///< also write event files (callbacks.h)
  /// The best weights are kept, and after the training the model has them.
  bool load_best_model_at_end = false;
  std::optional<std::string> metric_for_best_model{};     ///< "loss", or a metric of the task; unset: its first
  std::optional<std::int64_t> early_stopping_patience{};  ///< evaluations; needs load_best_model_at_end
  /// "": start anew; "auto": go on with an unfinished run in output_dir, if there is one; "must": with the run there,
  /// also to train a finished one further; or a checkpoint or run folder.
  std::string resume_from_checkpoint{};
  /// SIGTERM, SIGINT, SIGHUP and SIGUSR1 stop the run after its step: it is saved, and train() throws StoppedBySignal
  /// (stop.h).
  bool stop_on_signals = false;
  bool recompute = false;  ///< gradient checkpointing
  /// Keys of [train] with the same names (docs/bad_numbers.md).
  std::string on_nonfinite = "stop";
  std::int64_t max_nonfinite = 10;
  double loss_spike = 0;
  std::string on_loss_spike = "warn";
  /// Optimizer steps between comparisons of the ranks' copies of the weights ([run] compare_replicas_every); 0: none.
  std::int64_t compare_replicas_every = 0;
  /// A repeat gives the same bits on GPUs, too ([run] deterministic): only deterministic algorithms are used, in all of
  /// this process and from now on. Make the Trainer before anything else computes on a GPU.
  bool deterministic = false;
  bool dataloader_drop_last = false;
  data::LoadingOptions dataloader{};
  std::int64_t seed = 42;
};

/// A metric that a program adds to its task's.
struct AddedMetric {
  Metric metric;
  /// The sums of a batch of at least one sample (Task::measure()).
  std::function<MetricSums(const nn::Tensors& outputs, const data::Batch& batch)> measure;
};

struct TrainerInputs {
  /// Makes the model, from new modules each time: it is called more than once, and one of the models is trained. Such
  /// as
  /// [] { return model_source(Net()); }
  std::function<ModelSource()> model{};
  std::shared_ptr<const Task> task{};
  /// In place of the task's: the sum of the losses of a batch, in training and evaluation. The engine divides it by the
  /// weight of the whole batch, which is the task's (Task::weight()), so that the result is the same in every layout.
  std::function<at::Tensor(const nn::Tensors& outputs, const data::Batch& batch, const Task::LossOptions& options)>
      loss{};
  std::shared_ptr<data::Dataset> train{}, eval{}, test{};  ///< `eval` and `test` may be null
  DataCollator data_collator{};
  std::vector<AddedMetric> metrics{};
  Callbacks callbacks{};
};

/// The run of these arguments. Collective. @throws ConfigError, DataError
RunSetup prepare_program(comm::World& world, const TrainingArguments& arguments, const TrainerInputs& inputs);

}  // namespace trireme::train
