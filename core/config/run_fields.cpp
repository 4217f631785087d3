// The rows of the sections that every run has. Texts are read by users: on the console and in docs/config.md.
#include "core/config/document.h"
#include "core/config/run_config.h"

namespace trireme::config {
namespace {

// Beyond what any run needs, and far enough below 2^63 that products of two counts (epochs x steps) fit.
constexpr double kMostSteps = 1e12, kMostSamples = 1e9;

/// A row of `whole` for a struct that has a part of its keys: the same text, the same rules.
template <class T, class M>
void add_row_of(const FieldTable& whole, Fields<T>& rows, const char* key, M T::*member) {
  const auto* row = whole.find(key);
  rows.add(key, member, row->text, row->rules);
}

}  // namespace

const Fields<RunOptions>& run_fields() {
  using O = RunOptions;
  static const auto table =
      Fields<O>("run", "Where a run writes, what it runs on, and how it can be repeated.")
          .add("dir", &O::dir, "The run folder: resolved config, metrics, weights and checkpoints go there.")
          .add("seed", &O::seed,
               "The number that all random draws start from: weights, order of samples, augmentation, dropout.",
               {.min = 0})
          .add("device", &O::device, "What computes; auto takes GPUs when there are any.",
               {.choices = {"auto", "cpu", "cuda"}})
          .add("resume", &O::resume,
               "Where to go on from: a checkpoint folder, a run folder (its newest complete checkpoint), or auto for "
               "the run "
               "folder itself; empty starts anew.")
          .add("threads", &O::threads,
               "Compute threads of a rank; 0 is what OMP_NUM_THREADS says, else one when ranks share a machine, else "
               "all cores.",
               {.min = 0, .max = 4096})
          .add("checkpoint_every", &O::checkpoint_every,
               "Optimizer steps between checkpoints; 0 writes one at the end of each epoch.",
               {.min = 0, .max = kMostSteps})
          .add("keep_checkpoints", &O::keep_checkpoints, "How many of the newest checkpoints stay; 0 writes none.",
               {.min = 0, .max = 1e6})
          .add("memory_mb", &O::memory_mb,
               "The most that a CPU rank's tensors may take at once, MiB, as if it were a device's memory: decoded "
               "images "
               "and what a plugin offloads to the host do not count. 0 is no limit.",
               {.min = 0, .max = 1e9})
          .add("timeout_s", &O::timeout_s, "Seconds after which a rank that waits for the others gives up.",
               {.max = 1e7, .above = 0});
  return table;
}

const Fields<ModelOptions>& model_fields() {
  using O = ModelOptions;
  static const auto table =
      Fields<O>("model", "Which model. The other keys of the section belong to the model that is named here.")
          .add("name", &O::name, "The model.")
          .add("weights", &O::weights,
               "Weights to start from: a folder or a .safetensors file in Hugging Face's layout, a checkpoint, or a "
               "model "
               "of the Hub in the local cache (google/vit-base-patch16-224); empty draws fresh ones.");
  return table;
}

const Fields<DataOptions>& data_fields() {
  using O = DataOptions;
  const OnlyWith pictures{"name", {"image_folder", "leaves"}};
  const OnlyWith leaves{"name", {"leaves"}};
  static const auto table =
      Fields<O>("data", "The samples: where they are and how they are prepared.")
          .add("name", &O::name,
               "image_folder: train, validation and test folders of one folder a class; leaves: drawn leaves, made on "
               "the fly; tensors: train, validation and test .safetensors files with pixel_values and labels.",
               {.choices = {"image_folder", "leaves", "tensors"}})
          .add("path", &O::path,
               "The folder of the data set; required for image_folder and tensors. For leaves, a folder that trireme "
               "data "
               "leaves has made; empty draws them in memory.")
          .add("image_size", &O::image_size,
               "Pixels a side that images are resized to; unset: 224 for image_folder, 48 for leaves, and the size of "
               "the file for tensors, which are never resized.",
               {.min = 1, .max = 65536})
          .add("mean", &O::mean,
               "Taken from the red, green and blue of a pixel, on a scale from 0 to 1; unset beside loaded weights: "
               "what "
               "their preprocessor_config.json says.",
               {.length = 3})
          .add("std", &O::std, "What red, green and blue are divided by after that; unset: likewise.",
               {.above = 0, .length = 3})
          .add("flip", &O::flip, "Half of the training images are mirrored, left to right.")
          .add("random_resized_crop", &O::random_resized_crop,
               "Training images are cut at random and resized, instead of being resized whole.")
          .add("crop_scale", &O::crop_scale, "The least and the greatest part of an image's area that a cut takes.",
               {.max = 1, .above = 0, .length = 2, .only = OnlyWith{"random_resized_crop", {"true"}}})
          .add("workers", &O::workers, "Threads of a rank that decode images.", {.min = 1, .max = 1024})
          .add("prefetch", &O::prefetch, "Steps whose samples are made ready ahead.", {.min = 1, .max = 1024})
          .add("cache_mb", &O::cache_mb, "Memory of a rank for decoded images, MiB; 0 decodes them anew each epoch.",
               {.min = 0, .max = 1e9, .only = pictures})
          .add("on_bad_sample", &O::on_bad_sample,
               "A file that cannot be decoded ends the run (error) or is left out and counted (skip).",
               {.choices = {"error", "skip"}})
          .add("images", &O::images, "How many leaves are drawn, over all splits.",
               {.min = 30, .max = 10'000'000, .only = leaves})
          .add("leaf_seed", &O::leaf_seed, "Which leaves are drawn.", {.min = 0, .only = leaves});
  return table;
}

const Fields<RunTrainOptions>& train_fields() {
  using O = RunTrainOptions;
  const OnlyWith fp16{"precision", {"fp16"}};
  static const auto table =
      Fields<O>("train", "How long, in which batches and in which precision.")
          .add("epochs", &O::epochs, "Passes over the training samples.", {.min = 1, .max = 1e9})
          .add("max_steps", &O::max_steps, "Ends the run after so many optimizer steps, if that comes sooner.",
               {.min = 1, .max = kMostSteps})
          .add("max_seconds", &O::max_seconds, "Ends the run after so many seconds of training, if that comes sooner.",
               {.above = 0})
          .add("global_batch", &O::global_batch, "Samples of an optimizer step, over all ranks.",
               {.min = 1, .max = kMostSamples})
          .add("micro_batch", &O::micro_batch,
               "Samples that a rank takes through the model at once; a rank's share of the global batch is split into "
               "such parts, whose gradients add up. Unset: the whole share.",
               {.min = 1, .max = kMostSamples})
          .add("eval_batch", &O::eval_batch,
               "Samples that a rank takes through the model at once in evaluation. Unset: four times micro_batch.",
               {.min = 1, .max = kMostSamples})
          .add("precision", &O::precision,
               "The numbers of the forward and backward pass; bf16 and fp16 keep fp32 weights and run the heavy "
               "operations in 16 bits, fp16 with a dynamic loss scale.",
               {.choices = {"fp32", "bf16", "fp16", "fp64"}})
          .add("max_norm", &O::max_norm, "The gradient is scaled down to this norm when it is longer; 0 never does.",
               {.min = 0})
          .add("shuffle", &O::shuffle, "Training samples come in a new seeded order each epoch.")
          .add("drop_last", &O::drop_last, "Leaves out the last samples of an epoch when they fill no global batch.")
          .add("recompute", &O::recompute,
               "Keeps only the inputs of each block and computes the rest again in the backward pass: less memory, "
               "about a third more time.")
          .add("topk", &O::topk, "Evaluation also counts a sample as right when its class is among the best k.",
               {.min = 1, .max = kMostSamples})
          .add("label_smoothing", &O::label_smoothing,
               "The part of each label that is spread over all classes, in training; the loss of an evaluation is "
               "without it.",
               {.min = 0, .below = 1})
          .add("initial_scale", &O::initial_scale, "fp16: the loss scale at the start.", {.above = 0, .only = fp16})
          .add("min_scale", &O::min_scale, "fp16: the loss scale never falls below it.", {.above = 0, .only = fp16})
          .add("max_scale", &O::max_scale, "fp16: the loss scale never grows beyond it.", {.above = 0, .only = fp16})
          .add("growth_factor", &O::growth_factor, "fp16: what the scale is multiplied by to grow.",
               {.above = 1, .only = fp16})
          .add("backoff_factor", &O::backoff_factor, "fp16: what the scale is multiplied by to fall.",
               {.above = 0, .below = 1, .only = fp16})
          .add("growth_interval", &O::growth_interval, "fp16: good steps in a row after which the scale grows.",
               {.min = 1, .max = kMostSteps, .only = fp16})
          .add("hysteresis", &O::hysteresis, "fp16: overflows after which the scale falls.",
               {.min = 1, .max = kMostSteps, .only = fp16});
  return table;
}

const Fields<OptimizerOptions>& optimizer_fields() {
  using O = OptimizerOptions;
  const OnlyWith adam{"name", {"hybrid_adam"}};
  const OnlyWith sgd{"name", {"sgd"}};
  static const auto table =
      Fields<O>("optimizer", "How gradients change the weights.")
          .add("name", &O::name, "hybrid_adam: AdamW or Adam, fused; sgd: gradient descent with momentum.",
               {.choices = {"hybrid_adam", "sgd"}})
          .add("lr", &O::lr, "The learning rate, before the schedule.", {.min = 0})
          .add("weight_decay", &O::weight_decay, "How strongly weights are pulled to zero.", {.min = 0})
          .add("betas", &O::betas, "Decay of the running means of the gradient and of its square.",
               {.min = 0, .below = 1, .length = 2, .only = adam})
          .add("eps", &O::eps, "Added to the divisor of a step.", {.min = 0, .only = adam})
          .add("adamw", &O::adamw,
               "Weight decay acts on the weights (AdamW); false adds it to the gradient (Adam with an L2 term).",
               {.only = adam})
          .add("momentum", &O::momentum, "The part of the last step that is kept.", {.min = 0, .below = 1, .only = sgd})
          .add("nesterov", &O::nesterov, "Nesterov's momentum; needs momentum above 0 and no dampening.", {.only = sgd})
          .add("dampening", &O::dampening, "The part of a gradient that does not enter the momentum.",
               {.min = 0, .max = 1, .only = sgd})
          .add("no_decay", &O::no_decay,
               "Names of parameters without weight decay: a part of the name, or a pattern with *.")
          .add("freeze", &O::freeze,
               "Names of parameters that are not trained: a part of the name, or a pattern with *.");
  return table;
}

const Fields<ScheduleOptions>& schedule_fields() {
  using O = ScheduleOptions;
  const OnlyWith warmed{"name", {"constant", "linear", "cosine", "step", "multi_step", "polynomial"}};
  const OnlyWith floored{"name", {"linear", "cosine", "polynomial"}};
  const OnlyWith step{"name", {"step"}};
  const OnlyWith multi_step{"name", {"multi_step"}};
  const OnlyWith one_cycle{"name", {"one_cycle"}};
  static const auto table =
      Fields<O>("schedule", "How the learning rate changes, optimizer step by optimizer step.")
          .add("name", &O::name,
               "constant; linear or cosine down to the floor; step and multi_step drop it; polynomial; one_cycle rises "
               "and falls once.",
               {.choices = {"constant", "linear", "cosine", "step", "multi_step", "polynomial", "one_cycle"}})
          .add("warmup_steps", &O::warmup_steps, "Steps in which the rate first rises from 0; instead of warmup_ratio.",
               {.min = 0, .max = kMostSteps, .only = warmed})
          .add("warmup_ratio", &O::warmup_ratio, "The same as a part of all steps.",
               {.min = 0, .below = 1, .only = warmed})
          .add("min_lr_factor", &O::min_lr_factor, "The floor of the rate, as a part of lr.",
               {.min = 0, .max = 1, .only = floored})
          .add("step_size", &O::step_size, "Steps between two drops; required.",
               {.min = 0, .max = kMostSteps, .only = step})
          .add("milestones", &O::milestones, "The steps of the drops, ascending; required.",
               {.min = 1, .max = kMostSteps, .only = multi_step})
          .add("gamma", &O::gamma, "What a drop multiplies the rate by.",
               {.above = 0, .only = OnlyWith{"name", {"step", "multi_step"}}})
          .add("power", &O::power, "The exponent of the descent; 1 is a straight line.",
               {.above = 0, .only = OnlyWith{"name", {"polynomial"}}})
          .add("div_factor", &O::div_factor, "lr is the peak; the rate starts at lr / div_factor.",
               {.min = 1, .only = one_cycle})
          .add("final_div_factor", &O::final_div_factor, "The rate ends at its start / final_div_factor.",
               {.min = 1, .only = one_cycle})
          .add("pct_start", &O::pct_start, "The part of all steps in which the rate rises.",
               {.above = 0, .below = 1, .only = one_cycle});
  return table;
}

const Fields<ParallelOptions>& parallel_fields() {
  using O = ParallelOptions;
  static const auto table =
      Fields<O>("parallel", "How the ranks share the work.")
          .add("plugin", &O::plugin,
               "The plugin that lays the model over the ranks: the name of a built-in one, or a path to a .so; its "
               "options stand in [plugin.NAME]. Unset beside another key of this section than dp: hybrid_parallel.")
          .add("dp", &O::dp,
               "Data-parallel ranks. They are what the others leave of all ranks: a number here is checked, so that a "
               "file cannot run in another layout than it was written for.",
               {.min = 1, .max = 65536})
          .add("pp", &O::pp, "Pipeline ranks: short for plugin.hybrid_parallel.pp_size.", {.min = 1, .max = 65536})
          .add("schedule", &O::schedule, "Of the pipeline: short for plugin.hybrid_parallel.pp_style.")
          .add("sp", &O::sp, "Sequence-parallel ranks: short for plugin.hybrid_parallel.sp_size.",
               {.min = 1, .max = 65536})
          .add("sp_mode", &O::sp_mode, "Short for plugin.hybrid_parallel.sequence_parallelism_mode.")
          .add("tp", &O::tp, "Tensor-parallel ranks: short for plugin.hybrid_parallel.tp_size.",
               {.min = 1, .max = 65536})
          .add("zero", &O::zero, "Stage of ZeRO: short for plugin.hybrid_parallel.zero_stage.", {.min = 0, .max = 3});
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
  return {&run_fields(),       &model_fields(),    &data_fields(),    &train_fields(),
          &optimizer_fields(), &schedule_fields(), &parallel_fields()};
}

}  // namespace trireme::config
