// The fields of the sections that every run has. Users read the texts on the console and in docs/config.md.
#include "core/config/document.h"
#include "core/config/run_config.h"

namespace trireme::config {
namespace {

// More than any run needs, but far enough below 2^63 that products of two counts (epochs x steps) fit.
constexpr double kMostSteps = 1e12, kMostSamples = 1e9;

/// Adds a row of `whole` for a struct that has some of its keys, with the same text and rules.
template <class T, class M>
void add_row_of(const FieldTable& whole, Fields<T>& rows, const char* key, M T::*member) {
  const auto* row = whole.find(key);
  rows.add(key, member, row->text, row->rules);
}

}  // namespace

const Fields<RunOptions>& run_fields() {
  using O = RunOptions;
  static const auto table =
      Fields<O>("run", "The run folder, the device, the seed and checkpoints.")
          .add("dir", &O::dir,
               "The run folder, which receives the resolved configuration, metrics, weights and checkpoints.")
          .add("seed", &O::seed,
               "Seed of all random numbers: initial weights, order of the samples, augmentation and dropout.",
               {.min = 0})
          .add("device", &O::device,
               "The device to compute on; auto uses the GPUs of the machine, or the CPU if it has none.",
               {.choices = {"auto", "cpu", "cuda"}})
          .add("resume", &O::resume,
               "What to resume from: a checkpoint, a run folder (its newest complete checkpoint), or auto for the "
               "newest one in run.dir. Empty starts a new run.")
          .add("threads", &O::threads,
               "Compute threads per rank. 0 takes OMP_NUM_THREADS if it is set, else 1 if several CPU ranks share a "
               "machine, else an equal share of its cores.",
               {.min = 0, .max = 4096})
          .add("checkpoint_every", &O::checkpoint_every,
               "Optimizer steps between checkpoints within an epoch; the end of each epoch writes one, too. 0: only "
               "there.",
               {.min = 0, .max = kMostSteps})
          .add("keep_checkpoints", &O::keep_checkpoints,
               "Number of checkpoints to keep, the newest ones; 0 writes none.", {.min = 0, .max = 1e6})
          .add("export", &O::export_weights,
               "The weights that RUN/model holds at the end: those of the last step, or the best ones (train.best), "
               "which RUN/model-best holds in any case.",
               {.choices = {"last", "best"}})
          .add("memory_mb", &O::memory_mb,
               "Memory limit for the tensors of a CPU rank in MiB, in place of a GPU's memory. Decoded images and data "
               "that a plugin offloads to host memory do not count. 0 sets no limit.",
               {.min = 0, .max = 1e9})
          .add("timeout_s", &O::timeout_s,
               "Seconds that a rank waits for the others before the run ends with an error.", {.max = 1e7, .above = 0});
  return table;
}

const Fields<ModelOptions>& model_fields() {
  using O = ModelOptions;
  static const auto table =
      Fields<O>("model", "The model. The other keys of this section are options of the model that name selects.")
          .add("name", &O::name, "The kind of model.")
          .add("weights", &O::weights,
               "Weights to start from: a folder or a .safetensors file in Hugging Face's layout, a checkpoint, or the "
               "name of a Hub model that is in the local Hugging Face cache (google/vit-base-patch16-224). Empty "
               "initializes new weights.");
  return table;
}

const Fields<DataOptions>& data_fields() {
  using O = DataOptions;
  const OnlyWith pictures{"name", {"image_folder", "leaves"}};
  const OnlyWith leaves{"name", {"leaves"}};
  static const auto table =
      Fields<O>("data", "The data set and its preprocessing.")
          .add("name", &O::name,
               "image_folder: train, validation and test folders with one subfolder per class; leaves: generated "
               "images of leaves; tensors: train, validation and test .safetensors files with labels and the inputs of "
               "the model, such as pixel_values.",
               {.choices = {"image_folder", "leaves", "tensors"}})
          .add("path", &O::path,
               "The folder of the data set; required for image_folder and tensors. For leaves, a folder that `trireme "
               "data leaves` has written; empty generates the leaves in memory.")
          .add("image_size", &O::image_size,
               "Images are resized to this many pixels per side. Unset: 224 for image_folder, 48 for leaves, and the "
               "size in the file for tensors, which are never resized.",
               {.min = 1, .max = 65536})
          .add("mean", &O::mean,
               "Mean of the red, green and blue channels, subtracted from pixel values between 0 and 1. Unset: the "
               "values in the preprocessor_config.json of loaded weights, else the default.",
               {.length = 3})
          .add("std", &O::std,
               "Standard deviation of the red, green and blue channels, by which pixel values are divided. Unset: as "
               "for mean.",
               {.above = 0, .length = 3})
          .add("flip", &O::flip, "Mirror each training image left to right with a probability of one half.")
          .add("random_resized_crop", &O::random_resized_crop,
               "Cut a random part of each training image and resize that, instead of resizing the whole image.")
          .add("crop_scale", &O::crop_scale,
               "The smallest and the largest fraction of the image's area that a random crop covers.",
               {.max = 1, .above = 0, .length = 2, .only = OnlyWith{"random_resized_crop", {"true"}}})
          .add("workers", &O::workers, "Threads per rank that read samples.", {.min = 1, .max = 1024})
          .add("prefetch", &O::prefetch, "Number of steps whose samples are loaded ahead.", {.min = 1, .max = 1024})
          .add("cache_mb", &O::cache_mb,
               "Memory per rank for decoded images in MiB; 0 decodes them again in each epoch.",
               {.min = 0, .max = 1e9, .only = pictures})
          .add("on_bad_sample", &O::on_bad_sample,
               "What happens when a file cannot be decoded: error ends the run; skip leaves the sample out and counts "
               "it.",
               {.choices = {"error", "skip"}})
          .add("images", &O::images, "Number of generated images, in all splits together.",
               {.min = 30, .max = 10'000'000, .only = leaves})
          .add("leaf_seed", &O::leaf_seed, "Seed of the generated leaves.", {.min = 0, .only = leaves});
  return table;
}

const Fields<RunTrainOptions>& train_fields() {
  using O = RunTrainOptions;
  const OnlyWith fp16{"precision", {"fp16"}};
  static const auto table =
      Fields<O>("train", "Length of the training, batch sizes and precision.")
          .add("epochs", &O::epochs, "Passes over the training samples.", {.min = 1, .max = 1e9})
          .add("max_steps", &O::max_steps,
               "Stop after this many optimizer steps, if that is before the last epoch ends.",
               {.min = 1, .max = kMostSteps})
          .add("max_seconds", &O::max_seconds,
               "Stop after this many seconds of training, if that is before the last epoch ends.", {.above = 0})
          .add("global_batch", &O::global_batch, "Samples per optimizer step, over all ranks.",
               {.min = 1, .max = kMostSamples})
          .add("micro_batch", &O::micro_batch,
               "Samples per forward pass of a rank. A rank's share of the global batch is split into microbatches of "
               "this size, whose gradients are accumulated. Unset: the whole share.",
               {.min = 1, .max = kMostSamples})
          .add("eval_batch", &O::eval_batch,
               "Samples per forward pass of a rank in evaluation. Unset: four times micro_batch.",
               {.min = 1, .max = kMostSamples})
          .add("precision", &O::precision,
               "Precision of the forward and backward pass. bf16 and fp16 keep fp32 weights and run matrix products, "
               "convolutions and attention in 16 bits; fp16 uses a dynamic loss scale. tf32, on CUDA GPUs only, keeps "
               "fp32 but rounds the inputs of matrix products and convolutions to 10 bits of mantissa; fp32 never does "
               "so.",
               {.choices = {"fp32", "tf32", "bf16", "fp16", "fp64"}})
          .add("max_norm", &O::max_norm, "Clip the gradient to this norm; 0 disables clipping.", {.min = 0})
          .add("shuffle", &O::shuffle, "Shuffle the training samples in each epoch, using the seed.")
          .add("drop_last", &O::drop_last,
               "Leave out the last samples of an epoch when they do not fill a global batch.")
          .add("recompute", &O::recompute,
               "Activation checkpointing: keep only the inputs of each block and compute the rest again in the "
               "backward pass. Less memory, about a third more time.")
          .add("task", &O::task,
               "What the model is trained for, which decides loss and metrics: classification (one class for each "
               "sample or token), multi_label, regression, masked_lm, causal_lm. Unset: what the loaded weights are "
               "for, else the model's own task.")
          .add("best", &O::best,
               "The metric whose best value marks the weights to keep in RUN/model-best: validation.accuracy, "
               "validation.loss or another metric of the task. Unset: the task's first metric.")
          .add("topk", &O::topk,
               "Classification: evaluation also reports top-k accuracy, the fraction of samples whose class is among "
               "the k highest scores.",
               {.min = 1, .max = kMostSamples})
          .add("label_smoothing", &O::label_smoothing,
               "Label smoothing of the training loss: the fraction of each label that is spread over all classes. "
               "Evaluation does not use it. Regression has none.",
               {.min = 0, .below = 1})
          .add("initial_scale", &O::initial_scale, "fp16: the initial loss scale.", {.above = 0, .only = fp16})
          .add("min_scale", &O::min_scale, "fp16: the smallest loss scale.", {.above = 0, .only = fp16})
          .add("max_scale", &O::max_scale, "fp16: the largest loss scale.", {.above = 0, .only = fp16})
          .add("growth_factor", &O::growth_factor, "fp16: the factor by which the loss scale grows.",
               {.above = 1, .only = fp16})
          .add("backoff_factor", &O::backoff_factor,
               "fp16: the factor by which the loss scale shrinks after an overflow.",
               {.above = 0, .below = 1, .only = fp16})
          .add("growth_interval", &O::growth_interval,
               "fp16: consecutive steps without overflow after which the loss scale grows.",
               {.min = 1, .max = kMostSteps, .only = fp16})
          .add("hysteresis", &O::hysteresis, "fp16: overflows after which the loss scale shrinks.",
               {.min = 1, .max = kMostSteps, .only = fp16});
  return table;
}

const Fields<OptimizerOptions>& optimizer_fields() {
  using O = OptimizerOptions;
  const OnlyWith adam{"name", {"hybrid_adam"}};
  const OnlyWith sgd{"name", {"sgd"}};
  static const auto table =
      Fields<O>("optimizer", "The optimizer.")
          .add("name", &O::name, "hybrid_adam: AdamW or Adam, fused; sgd: gradient descent with momentum.",
               {.choices = {"hybrid_adam", "sgd"}})
          .add("lr", &O::lr, "The base learning rate, which the schedule scales.", {.min = 0})
          .add("weight_decay", &O::weight_decay, "Weight decay.", {.min = 0})
          .add("betas", &O::betas, "Decay rates of the running averages of the gradient and of its square.",
               {.min = 0, .below = 1, .length = 2, .only = adam})
          .add("eps", &O::eps, "Added to the denominator of the update, for numerical stability.",
               {.min = 0, .only = adam})
          .add("adamw", &O::adamw,
               "true: weight decay is applied to the weights (AdamW); false: it is added to the gradient (Adam with L2 "
               "regularization).",
               {.only = adam})
          .add("momentum", &O::momentum, "Momentum factor.", {.min = 0, .below = 1, .only = sgd})
          .add("nesterov", &O::nesterov, "Use Nesterov momentum; needs momentum above 0 and dampening 0.",
               {.only = sgd})
          .add("dampening", &O::dampening, "Dampening of the momentum.", {.min = 0, .max = 1, .only = sgd})
          .add("no_decay", &O::no_decay, "Parameters without weight decay: parts of their names, or patterns with *.")
          .add("freeze", &O::freeze, "Parameters that are not trained: parts of their names, or patterns with *.");
  return table;
}

const Fields<LrScheduleOptions>& lr_schedule_fields() {
  using O = LrScheduleOptions;
  const OnlyWith warmed{"name", {"constant", "linear", "cosine", "step", "multi_step", "polynomial"}};
  const OnlyWith floored{"name", {"linear", "cosine", "polynomial"}};
  const OnlyWith step{"name", {"step"}};
  const OnlyWith multi_step{"name", {"multi_step"}};
  const OnlyWith one_cycle{"name", {"one_cycle"}};
  static const auto table =
      Fields<O>("schedule", "The learning-rate schedule, evaluated at each optimizer step.")
          .add("name", &O::name,
               "constant; linear, cosine or polynomial decay to min_lr_factor; step and multi_step decay in drops; "
               "one_cycle rises once and falls once.",
               {.choices = {"constant", "linear", "cosine", "step", "multi_step", "polynomial", "one_cycle"}})
          .add("warmup_steps", &O::warmup_steps, "Steps of linear warm-up from 0; an alternative to warmup_ratio.",
               {.min = 0, .max = kMostSteps, .only = warmed})
          .add("warmup_ratio", &O::warmup_ratio, "Warm-up as a fraction of all steps; an alternative to warmup_steps.",
               {.min = 0, .below = 1, .only = warmed})
          .add("min_lr_factor", &O::min_lr_factor, "The learning rate at the end, as a fraction of lr.",
               {.min = 0, .max = 1, .only = floored})
          .add("step_size", &O::step_size, "Steps between two drops; required.",
               {.min = 0, .max = kMostSteps, .only = step})
          .add("milestones", &O::milestones,
               "The steps at which the learning rate drops, in ascending order; required.",
               {.min = 1, .max = kMostSteps, .only = multi_step})
          .add("gamma", &O::gamma, "The factor by which each drop multiplies the learning rate.",
               {.above = 0, .only = OnlyWith{"name", {"step", "multi_step"}}})
          .add("power", &O::power, "The exponent of the decay; 1 is linear.",
               {.above = 0, .only = OnlyWith{"name", {"polynomial"}}})
          .add("div_factor", &O::div_factor, "The learning rate starts at lr / div_factor; lr is its peak.",
               {.min = 1, .only = one_cycle})
          .add("final_div_factor", &O::final_div_factor,
               "The learning rate ends at its initial value / final_div_factor.", {.min = 1, .only = one_cycle})
          .add("pct_start", &O::pct_start, "The fraction of all steps in which the learning rate rises.",
               {.above = 0, .below = 1, .only = one_cycle});
  return table;
}

const Fields<ParallelOptions>& parallel_fields() {
  using O = ParallelOptions;
  static const auto table =
      Fields<O>("parallel", "How the work is distributed over the ranks.")
          .add("plugin", &O::plugin,
               "How the model is distributed over the ranks: the name of a built-in plugin, or the path of a .so. The "
               "plugin's options are in [plugin.NAME]. Unset: hybrid_parallel if this section has a key besides dp, "
               "else torch_ddp.")
          .add("dp", &O::dp,
               "Number of data-parallel ranks. It follows from the number of ranks and the other keys; a value given "
               "here is checked, so that a file cannot run in another layout by mistake.",
               {.min = 1, .max = 4096})
          .add("pp", &O::pp, "Number of pipeline ranks; short for plugin.hybrid_parallel.pp_size.",
               {.min = 1, .max = 4096})
          .add("schedule", &O::schedule, "The pipeline schedule; short for plugin.hybrid_parallel.pp_style.")
          .add("sp", &O::sp, "Number of sequence-parallel ranks; short for plugin.hybrid_parallel.sp_size.",
               {.min = 1, .max = 4096})
          .add("sp_mode", &O::sp_mode,
               "The mode of sequence parallelism; short for plugin.hybrid_parallel.sequence_parallelism_mode.")
          .add("tp", &O::tp, "Number of tensor-parallel ranks; short for plugin.hybrid_parallel.tp_size.",
               {.min = 1, .max = 4096})
          .add("zero", &O::zero, "ZeRO stage; short for plugin.hybrid_parallel.zero_stage.", {.min = 0, .max = 3});
  return table;
}

const Fields<TrainOptions>& booster_train_fields() {
  static const auto table = [] {
    Fields<TrainOptions> rows("train", train_fields().text);
    const auto add = [&rows](const char* key, auto member) { add_row_of(train_fields(), rows, key, member); };
    add("epochs", &TrainOptions::epochs);
    add("max_steps", &TrainOptions::max_steps);
    add("global_batch", &TrainOptions::global_batch);
    add("micro_batch", &TrainOptions::micro_batch);
    add("precision", &TrainOptions::precision);
    add("max_norm", &TrainOptions::max_norm);
    add("shuffle", &TrainOptions::shuffle);
    add("drop_last", &TrainOptions::drop_last);
    add("recompute", &TrainOptions::recompute);
    add("initial_scale", &TrainOptions::initial_scale);
    add("min_scale", &TrainOptions::min_scale);
    add("max_scale", &TrainOptions::max_scale);
    add("growth_factor", &TrainOptions::growth_factor);
    add("backoff_factor", &TrainOptions::backoff_factor);
    add("growth_interval", &TrainOptions::growth_interval);
    add("hysteresis", &TrainOptions::hysteresis);
    return rows;
  }();
  return table;
}

const Fields<LoadingOptions>& loading_fields() {
  static const auto table = [] {
    Fields<LoadingOptions> rows("data", data_fields().text);
    add_row_of(data_fields(), rows, "workers", &LoadingOptions::workers);
    add_row_of(data_fields(), rows, "prefetch", &LoadingOptions::prefetch);
    return rows;
  }();
  return table;
}

std::vector<const FieldTable*> core_tables() {
  return {&run_fields(),       &model_fields(),       &data_fields(),    &train_fields(),
          &optimizer_fields(), &lr_schedule_fields(), &parallel_fields()};
}

}  // namespace trireme::config
