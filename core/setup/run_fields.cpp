// The fields of the sections that every run has. Users read the texts on the console and in docs/config.md.
#include <algorithm>

#include "core/base/text.h"
#include "core/setup/run_config.h"

namespace trireme::train {

const Fields<RunSection>& run_fields() {
  using O = RunSection;
  static const auto table =
      Fields<O>("run", "The run folder, the device, the seed and checkpoints.")
          .add("dir", &O::dir,
               "The run folder, which receives the resolved configuration, metrics, weights and checkpoints.",
               {.path = true})
          .add("seed", &O::seed,
               "Seed of all random numbers: initial weights, order of the samples, augmentation and dropout.",
               {.min = 0})
          .add("device", &O::device,
               "The device to compute on; auto uses the GPUs of the machine, or the CPU if it has none.",
               {.choices = {"auto", "cpu", "cuda"}})
          .add("resume", &O::resume,
               "Where to start from. auto goes on with an unfinished run in run.dir, from its newest good checkpoint, "
               "and else starts a new run; must refuses to start a new one; never always does. Or the path of a "
               "checkpoint, or of a run (its newest one).",
               {.path = true})
          .add("deterministic", &O::deterministic,
               "A repeat of the run gives the same bits on GPUs, too, as it does on CPUs in any case: only "
               "deterministic algorithms are used, which may be slower, and an operation that has none is an error "
               "(docs/gpu.md).")
          .add("threads", &O::threads,
               "Compute threads per rank. 0 takes OMP_NUM_THREADS if it is set, else 1 if several CPU ranks share a "
               "machine, else an equal share of its cores.",
               {.min = 0, .max = 4096})
          .add(
              "bind", &O::bind,
              "Which cores ranks with GPUs use. auto: those of the NUMA node of the rank's GPU, divided over the ranks "
              "whose GPUs are on it, unless the launcher, Slurm or a cpuset has bound the process already. none: any.",
              {.choices = {"auto", "none"}})
          .add("checkpoint_every", &O::checkpoint_every,
               "Optimizer steps between checkpoints within an epoch; the end of each epoch writes one, too. 0: only "
               "there.",
               {.min = 0, .max = kMostSteps})
          .add("keep_checkpoints", &O::keep_checkpoints,
               "Number of checkpoints to keep, the newest ones; 0 writes none.", {.min = 0, .max = 1e6})
          .add("checkpoint_shard_mb", &O::checkpoint_shard_mb,
               "MiB of tensors in a file of a checkpoint at most, but for a slice that is larger. Every rank writes "
               "files of its own.",
               {.min = 1, .max = 1e9})
          .add(
              "async_save", &O::async_save,
              "Write checkpoints in the background: a rank copies what it would write to host memory, and the training "
              "goes on while the copy is written (docs/checkpoints.md). Each rank needs that memory; the first lines "
              "of "
              "the run say how much.")
          .add("export", &O::export_weights,
               "The weights that RUN/model holds at the end: those of the last step, or the best ones (train.best), "
               "which RUN/model-best holds in any case.",
               {.choices = {"last", "best"}})
          .add("export_shard_mb", &O::export_shard_mb,
               "Largest size in MiB of a file of tensors in RUN/model. A larger model is written as several files with "
               "an index, as Hugging Face's libraries read them; a tensor that is larger has a file for itself. 0: one "
               "file.",
               {.min = 0, .max = 1e9})
          .add("export_dtype", &O::export_dtype,
               "Data type of the weights in RUN/model, also in its config.json. Unset: that of the training's weights, "
               "which is fp32 except with train.precision = \"fp64\". RUN/model-best and checkpoints keep that one.",
               {.choices = {"fp32", "bf16", "fp16"}})
          .add("compare_replicas_every", &O::compare_replicas_every,
               "Optimizer steps between comparisons of the weights that several ranks hold: the run ends when copies "
               "of one differ (docs/bad_numbers.md). 0: never.",
               {.min = 0, .max = kMostSteps})
          .add("extensions", &O::extensions,
               "Shared objects that add models, data sets, tasks, optimizers, learning-rate and pipeline schedules to "
               "those that this file can select, sharding roles to those that a model's policy can name, and callbacks "
               "to the run, such as ./libmine.so (docs/extensions.md).",
               {.path = true})
          .add("memory_mb", &O::memory_mb,
               "Memory limit for the tensors of a CPU rank in MiB, in place of a GPU's memory. Decoded images and data "
               "that a plugin offloads to host memory do not count. 0 sets no limit.",
               {.min = 0, .max = 1e9})
          .add("peak_tflops", &O::peak_tflops,
               "The highest TFLOP/s that one rank can compute in the run's precision, for the MFU (model FLOPs "
               "utilization) of the progress line. Unset: the dense peak in NVIDIA's data sheet of a known GPU, "
               "divided by the ranks that "
               "share it; for other devices no MFU is reported.",
               {.max = 1e9, .above = 0})
          .add("forecast", &O::forecast,
               "Rank 0 forecasts the memory and the messages of a step at the start, and the run compares itself with "
               "it at its end (docs/plan.md). It runs two steps without values of every distinct rank; turn it off for "
               "blocks of your own that must see values.")
          .add("machine", &O::machine,
               "The file of the machine's rates, which `trireme bench --machine` measures, or one by name "
               "(docs/plan.md): "
               "the run's forecast in summary.json then has the seconds of a step.",
               {.path = true, .path_ending = ".toml"})
          .add("rank_logs", &O::rank_logs,
               "Each rank writes its own notes, warnings, errors and step times to RUN/logs/rank-N.log, on its own "
               "host.")
          .add(
              "rank_times_every", &O::rank_times_every,
              "Optimizer steps between two reports on how long the ranks waited for data, computed and waited for each "
              "other: the least, the most and which rank, on the console and in metrics.jsonl. 0: none.",
              {.min = 0, .max = kMostSteps})
          .add("tensorboard", &O::tensorboard,
               "Also writes the numbers of steps and evaluations to RUN/tensorboard, for TensorBoard.")
          .add("on_save_error", &O::on_save_error,
               "What happens when a checkpoint, the best weights (RUN/model-best) or a line of metrics.jsonl or for "
               "TensorBoard cannot be written, for example because the disk is full: stop ends the run with exit code "
               "7; continue warns and trains on. Earlier checkpoints and best weights stay in any case.",
               {.choices = {"stop", "continue"}})
          .add("stop_grace_s", &O::stop_grace_s,
               "Seconds after which a run ends that a signal (SIGTERM, SIGINT, SIGHUP, SIGUSR1) has asked to stop, if "
               "it "
               "could not finish its step and save by then: a little less than the cluster waits before it kills a "
               "job. 0: as long as it needs.",
               {.min = 0, .max = 86400})
          .rule([](const O& run, const CheckedSection& section) {
            if (run.dir.empty()) section.fail("dir", "is empty; name the folder the run writes to");
            if (text::printable(run.dir) != run.dir) section.fail("dir", "is not UTF-8; choose another name");
            if (run.resume.empty())
              section.fail("resume", "is empty; set auto, must, never, or the path of a checkpoint or a run");
            if (run.keep_checkpoints > 0) return;
            for (const auto& [key, is_set] :
                 {std::pair{"checkpoint_every", run.checkpoint_every > 0}, std::pair{"async_save", run.async_save},
                  std::pair{"checkpoint_shard_mb", run.checkpoint_shard_mb != O().checkpoint_shard_mb}})
              if (is_set)
                section.fail(key,
                             "has no effect, because keep_checkpoints = 0 keeps none; set run.keep_checkpoints to "
                             "1 or more");
          });
  return table;
}

const Fields<CommSection>& comm_fields() {
  using O = CommSection;
  static const auto table =
      Fields<O>("comm", "The communication of the ranks: how long they wait for each other, and checks of their calls.")
          .add("init_timeout_s", &O::init_timeout_s,
               "Seconds that a rank waits for the others at the start, and in the first operation of each group "
               "(over NCCL until the first step is done, if it is longer than timeout_s), before the run ends with an "
               "error.",
               {.max = 1e7, .above = 0})
          .add(
              "timeout_s", &O::timeout_s,
              "Seconds that any other operation may take, from when it could start on this rank: its tensors are "
              "computed, and earlier operations of its group are done. Longer than the longest time for which one rank "
              "works while others wait for it.",
              {.max = 1e7, .above = 0})
          .add("check", &O::check,
               "Before each operation the ranks of its group compare what they are about to do: operation, order, "
               "shape, "
               "dtype, kind of reduction and root. A difference is an error that names the rank. For debugging: each "
               "operation costs one more exchange.");
  return table;
}

const Fields<ModelSection>& model_fields() {
  using O = ModelSection;
  static const auto table =
      Fields<O>("model", "The model. The other keys of this section are options of the model that name selects.")
          .add("name", &O::name, "The kind of model.")
          .add("weights", &O::weights,
               "Weights to start from: a folder in Hugging Face's layout, a .safetensors file, a PyTorch state dict "
               "(.pth), a checkpoint, or the "
               "name of a Hub model that is in the local Hugging Face cache (google/vit-base-patch16-224). Empty "
               "initializes new weights.",
               {.path = true});
  return table;
}

const Fields<LoraSection>& lora_fields() {
  using O = LoraSection;
  static const auto table =
      Fields<O>("lora",
                "LoRA: the weights of the loaded model are frozen, and low-rank adapters on its linear layers are "
                "trained. Without this section all weights are trained.")
          .add("rank", &O::rank, "Rank of the adapters.", {.min = 1, .max = 65536})
          .add("alpha", &O::alpha, "The adapters' outputs are scaled by alpha / rank.", {.max = 1e6, .above = 0})
          .add("dropout", &O::dropout, "Dropout probability of the adapters' inputs.", {.min = 0, .below = 1})
          .add("target", &O::target,
               "The linear layers with adapters: their names or the last parts of them, such as query, in which * "
               "matches any characters except a dot; all-linear: all but the head.")
          .add("train", &O::train,
               "Modules that are trained in full, named in the same way. Unset: the head for classes, if the model has "
               "one.")
          .add("weights", &O::weights,
               "Adapters to start from: a folder in PEFT's format, or a run with [lora]. Empty: new adapters, which do "
               "not change the model's outputs at first.",
               {.path = true})
          .add("merge", &O::merge,
               "At the end, also write the model with the adapters added to its weights to RUN/model-merged. RUN/model "
               "and RUN/model-best hold the adapters alone.")
          .rule([](const O& o, const CheckedSection& section) {
            if (o.target.empty()) section.fail("target", "is empty; name the layers that get adapters, or all-linear");
            const auto has_empty = [](const std::vector<std::string>& names) {
              return std::find(names.begin(), names.end(), "") != names.end();
            };
            constexpr const char* kEmptyName = "holds an empty name, which names no layer; remove it";
            if (has_empty(o.target)) section.fail("target", kEmptyName);
            if (o.train && has_empty(*o.train)) section.fail("train", kEmptyName);
          });
  return table;
}

const Fields<DataSection>& data_fields() {
  using O = DataSection;
  static const auto table =
      Fields<O>("data", "The data set. The other keys of this section are options of the one that name selects.")
          .add("name", &O::name, "The kind of data set.")
          .add_all(data::loading_fields())
          .add("balance_classes", &O::balance_classes,
               "How far the classes are evened out in each epoch of training: a class with n samples has a part in "
               "proportion to n^(1 - balance_classes). 1: the same for all classes; unset, or 0: as in the data.",
               {.min = 0, .max = 1})
          .add("weight", &O::weight,
               "How many of an epoch's training samples are of this source, relative to the weights of [[data.mix]].",
               {.max = 1e9, .above = 0});
  return table;
}

const Fields<MixSection>& mix_fields() {
  using O = MixSection;
  static const auto table =
      Fields<O>(
          "data.mix",
          "Further data, with the keys of its kind. An epoch has as many training samples as all sources together, "
          "of each source in proportion to its weight; validation and test samples are those of all sources. The "
          "section may be repeated.")
          .repeated()
          .add("name", &O::name, "The kind of data set. Unset: that of [data].")
          .add("weight", &O::weight,
               "How many of an epoch's training samples are of this source, relative to the others.",
               {.max = 1e9, .above = 0});
  return table;
}

const Fields<TrainSection>& train_section_fields() {
  using O = TrainSection;
  static const auto table =
      Fields<O>("train", train_fields().text + " The other keys of this section are options of the task.")
          .add("task", &O::task,
               "What the model is trained for, which decides loss and metrics. Unset: what the loaded weights are for, "
               "else the model's own task.")
          .add("best", &O::best,
               "The metric whose best value marks the weights to keep in RUN/model-best: validation.accuracy, "
               "validation.loss or another metric of the task. Unset: the task's first metric.")
          .add("eval_every", &O::eval_every,
               "Optimizer steps between evaluations on the validation split within an epoch; the end of each epoch has "
               "one, too. Unset: only there.",
               {.min = 1, .max = kMostSteps})
          .add("patience", &O::patience,
               "Stop early: after this many evaluations in a row of which none was better than the best one before "
               "(train.best). Unset: never.",
               {.min = 1, .max = kMostSteps})
          .add("max_seconds", &O::max_seconds,
               "Stop after this many seconds of training, if that is before the last epoch ends.", {.above = 0})
          .add("eval_batch", &O::eval_batch,
               "Samples per forward pass of a rank in evaluation. Unset: four times micro_batch.",
               {.min = 1, .max = kMostSamples})
          .add(
              "max_nonfinite", &O::max_nonfinite,
              "With on_nonfinite = skip: steps in a row that may be skipped. With rollback, also of on_loss_spike: how "
              "often the run returns to the same checkpoint. After that it ends.",
              {.min = 1, .max = kMostSteps})
          .add("loss_spike", &O::loss_spike,
               "Compare each step's loss with those before it: a spike is a loss this many deviations above their "
               "median, such as 8 (docs/bad_numbers.md). 0: losses are not compared.",
               {.min = 0})
          .add("on_loss_spike", &O::on_loss_spike,
               "What happens at a spike of the loss. warn: a line on the screen. stop: the run ends. rollback: the run "
               "returns to its newest checkpoint and leaves the batch out.",
               {.choices = {"warn", "stop", "rollback"}})
          .add("on_oom", &O::on_oom,
               "What happens when memory runs out in training. stop: the run ends with what was held and what would "
               "need "
               "less. retry: it goes on once with microbatches of half the samples, which train the same, from its "
               "newest "
               "checkpoint, where `trireme train` starts the ranks or is the only one; not with batch norms, which "
               "compute the statistics of a microbatch.",
               {.choices = {kOomStop, kOomRetry}})
          .add_all(train_fields())
          .rule([](const O& o, const CheckedSection& section) {
            if (o.on_loss_spike != "warn" && o.loss_spike == 0)
              section.fail("on_loss_spike", "has no effect without loss_spike; set train.loss_spike, or remove it");
          });
  return table;
}

const Fields<OptimizerSection>& optimizer_section_fields() {
  static const auto table = Fields<OptimizerSection>("optimizer", optim::optimizer_fields().text)
                                .add("name", &OptimizerSection::name, "The kind of optimizer.")
                                .add_all(optim::optimizer_fields());
  return table;
}

const Fields<ScheduleSection>& schedule_section_fields() {
  static const auto table = Fields<ScheduleSection>("schedule", optim::lr_schedule_fields().text)
                                .add("name", &ScheduleSection::name, "The curve of the learning rate after warm-up.")
                                .add_all(optim::lr_schedule_fields());
  return table;
}

std::vector<const FieldTable*> section_tables() {
  return {&run_fields(),
          &model_fields(),
          &lora_fields(),
          &data_fields(),
          &train_section_fields(),
          &optimizer_section_fields(),
          &schedule_section_fields(),
          &tune::tune_fields(),
          &comm_fields(),
          &parallel_fields()};
}

}  // namespace trireme::train
