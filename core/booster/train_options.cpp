#include "core/booster/train_options.h"

#include <utility>

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

static Fields<KernelOptions> kernel_fields() {
  using O = KernelOptions;
  return Fields<O>("train", "")
      .add("enable_all_optimization", &O::enable_all_optimization,
           "Turns on those of the enable_* keys that were measured to be faster on this kind of device, where they "
           "apply to the model: flash attention everywhere, enable_sequence_overlap in hybrid_parallel, "
           "enable_jit_fused on CPUs for a model with "
           "dropout. Trireme's GPU kernels have not been measured yet: set their keys to use them.")
      .add("enable_flash_attention", &O::enable_flash_attention,
           "true: attention must use LibTorch's flash or memory-efficient kernel, and the run is refused where there "
           "is none. false: attention scores are materialized in memory. Unset: the fast kernel, if there is one for "
           "the device and precision, and attention has no dropout.")
      .add("attention_kernel", &O::attention_kernel,
           "The attention kernel by name, in place of enable_flash_attention: LibTorch's flash, memory_efficient or "
           "cudnn, and the run is refused where it is not available; math: attention scores are materialized. CPUs "
           "have flash and math.",
           {.choices = {"flash", "memory_efficient", "cudnn", "math"}})
      .add("enable_fused_normalization", &O::enable_fused_normalization,
           "Compute the residual sum and the layer norm after it in one step. One kernel on a GPU; no gain on a CPU "
           "(docs/parallelism.md).")
      .add("enable_jit_fused", &O::enable_jit_fused,
           "Compute bias and exact GELU in one step, and dropout and the residual sum in one step. One kernel each on "
           "a GPU; on a CPU only the second is faster, and only with dropout.")
      .rule([](const O& kernels, const CheckedSection& section) {
        if (kernels.attention_kernel && kernels.enable_flash_attention)
          section.fail("attention_kernel", "conflicts with enable_flash_attention; set only one of them");
        if (!kernels.enable_all_optimization) return;
        const auto refuse = [&section](const char* key) {
          section.fail(key, "is false, but enable_all_optimization = true turns it on; remove one of the two");
        };
        if (kernels.attention_kernel == "math")
          section.fail("attention_kernel",
                       "\"math\" materializes attention scores, but enable_all_optimization = true avoids that; remove "
                       "one of the two");
        if (!kernels.enable_flash_attention.value_or(true)) refuse("enable_flash_attention");
        if (!kernels.enable_fused_normalization.value_or(true)) refuse("enable_fused_normalization");
        if (!kernels.enable_jit_fused.value_or(true)) refuse("enable_jit_fused");
      });
}

static void check_recompute_keys(const TrainOptions& train, const CheckedSection& section) {
  const bool ratio = train.recompute_ratio < 1, counts = !train.recompute_layers_per_stage.empty();
  for (const auto& [set, key] : {std::pair{ratio, "recompute_ratio"},
                                 {counts, "recompute_layers_per_stage"},
                                 {train.offload_activations, "offload_activations"}})
    if (set && !train.recompute)
      section.fail(key, "has no effect without recompute; remove it, or set train.recompute = true");
  if (ratio && counts)
    section.fail("recompute_ratio", "conflicts with recompute_layers_per_stage; set only one of them");
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
               "this size, whose gradients are accumulated. Unset: the whole share, and in a pipeline a "
               "part of it. A batch norm computes its statistics of one microbatch. In a file \"auto\": the plan "
               "chooses it (docs/plan.md).",
               {.min = 1, .max = kMostSamples})
          .add(
              "precision", &O::precision,
              "Precision of the forward and backward pass. bf16 and fp16 keep fp32 weights and run matrix products, "
              "convolutions and attention in 16 bits; fp16 uses a dynamic loss scale. tf32, on CUDA GPUs only, keeps "
              "fp32 but rounds the inputs of matrix products and convolutions to 10 bits of mantissa; fp32 never does "
              "so. On CPUs without instructions for 16 bits (AVX-512 BF16 and FP16, AMX), bf16 and fp16 are many times "
              "slower than fp32.",
              {.choices = {"fp32", "tf32", "bf16", "fp16", "fp64"}})
          .add("max_norm", &O::max_norm, "Clip the gradient to this norm; 0 disables clipping.", {.min = 0})
          .add("on_nonfinite", &O::on_nonfinite,
               "What happens when the loss or a gradient is not finite (docs/bad_numbers.md). stop: the run ends with "
               "a report of the first tensor that was not finite. skip: the step changes nothing and the run "
               "continues. rollback: the run returns to its newest checkpoint and leaves the batch out.",
               {.choices = {"stop", "skip", "rollback"}})
          .add("ema_decay", &O::ema_decay,
               "Decay of an exponential moving average of the weights, such as 0.9999; early steps use a smaller one. "
               "The average is what is evaluated, kept as the best and exported; the training goes on from the weights "
               "themselves. Unset: no average.",
               {.above = 0, .below = 1})
          .add("shuffle", &O::shuffle, "Shuffle the training samples in each epoch, using the seed.")
          .add("drop_last", &O::drop_last,
               "Leave out the last samples of an epoch when they do not fill a global batch.")
          .add("recompute", &O::recompute,
               "Activation checkpointing: keep only the inputs of each block and compute the rest again in the "
               "backward pass. Less memory, about a third more time.")
          .add("recompute_ratio", &O::recompute_ratio,
               "With recompute: the fraction of each stage's blocks that is recomputed, from the first block on, at "
               "least one. Without a pipeline the model is one stage (Colossal-AI: gradient_checkpoint_config with "
               "gradient_checkpointing_ratio).",
               {.max = 1, .above = 0})
          .add("recompute_layers_per_stage", &O::recompute_layers_per_stage,
               "With recompute: the number of blocks of each stage that are recomputed, from the first block on; one "
               "number per stage, as in num_layers_per_stage of a pipeline, and one without a pipeline (Colossal-AI: "
               "num_ckpt_layers_per_stage).",
               {.min = 0, .max = 1e6})
          .add("recompute_modules", &O::recompute_modules,
               "Selective recompute: the names of layers that keep only their inputs and are computed again in the "
               "backward pass, where their block is not recomputed whole. \"attention\" is every self-attention layer; "
               "other names are patterns, such as \"*.mlp\". Layers with an activation function and gated layers can "
               "be named too.")
          .add("offload_activations", &O::offload_activations,
               "With recompute, on GPUs: what recomputed blocks keep, their inputs, lies in pinned host memory between "
               "the forward and the backward pass. Copies overlap with computation.")
          .add_all(&O::kernels, kernel_fields())
          .add_all(&O::loss_scale, loss_scale_fields())
          .rule(check_train)
          .rule(check_recompute_keys);
  return table;
}

}  // namespace trireme
