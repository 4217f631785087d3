#include "core/booster/train_options.h"

#include "core/config/table.h"

namespace trireme {

static Fields<optim::LossScaleOptions> loss_scale_fields() {
  using O = optim::LossScaleOptions;
  const OnlyWith fp16{"precision", {"fp16"}};
  return Fields<O>("train", "")
      .add("initial_scale", &O::initial_scale, "fp16: the initial loss scale.", {.above = 0, .only = fp16})
      .add("min_scale", &O::min_scale, "fp16: the smallest loss scale.", {.above = 0, .only = fp16})
      .add("max_scale", &O::max_scale, "fp16: the largest loss scale.", {.above = 0, .only = fp16})
      .add("growth_factor", &O::growth_factor, "fp16: the factor by which the loss scale grows.",
           {.above = 1, .only = fp16})
      .add("backoff_factor", &O::backoff_factor, "fp16: the factor by which the loss scale shrinks after an overflow.",
           {.above = 0, .below = 1, .only = fp16})
      .add("growth_interval", &O::growth_interval,
           "fp16: consecutive steps without overflow after which the loss scale grows.",
           {.min = 1, .max = kMostSteps, .only = fp16})
      .add("hysteresis", &O::hysteresis, "fp16: overflows after which the loss scale shrinks.",
           {.min = 1, .max = kMostSteps, .only = fp16});
}

static void check_train(const TrainOptions& train, const CheckedSection& section) {
  if (train.micro_batch && *train.micro_batch > train.global_batch)
    section.fail("micro_batch", fmt::format("is more than global_batch = {}; set it to at most {}", train.global_batch,
                                            train.global_batch));
  if (train.precision != "fp16") return;
  const auto& [initial, least, most, growth, backoff, interval, hysteresis] = train.loss_scale;
  if (least > initial)
    section.fail(section.written("min_scale") ? "min_scale" : "initial_scale",
                 fmt::format("breaks min_scale <= initial_scale: min_scale is {}, initial_scale {}",
                             config::to_toml(least), config::to_toml(initial)));
  if (initial > most)
    section.fail(section.written("max_scale") ? "max_scale" : "initial_scale",
                 fmt::format("breaks initial_scale <= max_scale: initial_scale is {}, max_scale {}",
                             config::to_toml(initial), config::to_toml(most)));
}

const Fields<TrainOptions>& train_fields() {
  using O = TrainOptions;
  static const auto table =
      Fields<O>("train", "Length of the training, batch sizes and precision.")
          .add("epochs", &O::epochs, "Passes over the training samples.", {.min = 1, .max = 1e9})
          .add("max_steps", &O::max_steps,
               "Stop after this many optimizer steps, if that is before the last epoch ends.",
               {.min = 1, .max = kMostSteps})
          .add("global_batch", &O::global_batch, "Samples per optimizer step, over all ranks.",
               {.min = 1, .max = kMostSamples})
          .add("micro_batch", &O::micro_batch,
               "Samples per forward pass of a rank. A rank's share of the global batch is split into microbatches of "
               "this size, whose gradients are accumulated. Unset: the whole share.",
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
          .add_all(&O::loss_scale, loss_scale_fields())
          .rule(check_train);
  return table;
}

}  // namespace trireme
