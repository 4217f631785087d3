// TrainOptions: the part of [train] that Booster reads: the number of steps, how a step runs, and the length of the lr
// schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/optim/loss_scaler.h"

namespace trireme {

/// The keys that choose among kernels with the same results (core/booster/kernel_choice.h). An unset key follows
/// enable_all_optimization; without that, fused attention is on if available, and norms and pointwise steps use
/// LibTorch's kernels.
struct KernelOptions {
  bool enable_all_optimization = false;
  std::optional<bool> enable_flash_attention{}, enable_fused_normalization{}, enable_jit_fused{};
  std::optional<std::string> attention_kernel{};  ///< flash | memory_efficient | cudnn | math
};

struct TrainOptions {
  std::int64_t epochs = 3;
  std::optional<std::int64_t> max_steps{};
  std::int64_t global_batch = 32;
  std::optional<std::int64_t> micro_batch{};  ///< samples of a rank per forward pass; unset: its whole share
  std::string precision = "fp32";             ///< fp32 | tf32 | bf16 | fp16 | fp64
  double max_norm = 0;                        ///< 0: no clipping
  std::string on_nonfinite = "stop";          ///< stop | skip | rollback; a step changes nothing in any case
  std::optional<double> ema_decay{};          ///< of the average of the weights; unset: none
  bool shuffle = true;
  bool drop_last = false;
  bool recompute = false;
  double recompute_ratio = 1;
  std::vector<std::int64_t> recompute_layers_per_stage{};  ///< empty: by recompute_ratio
  std::vector<std::string> recompute_modules{};            ///< layers to recompute by themselves, by name
  bool offload_activations = false;
  KernelOptions kernels{};
  optim::LossScaleOptions loss_scale{};
};

const Fields<TrainOptions>& train_fields();

}  // namespace trireme
