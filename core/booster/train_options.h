// TrainOptions: the part of [train] that Booster reads: the number of steps, how a step runs, and the length of the lr
// schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/fields.h"
#include "core/optim/loss_scaler.h"

namespace trireme {

struct TrainOptions {
  std::int64_t epochs = 3;
  std::optional<std::int64_t> max_steps{};
  std::int64_t global_batch = 32;
  std::optional<std::int64_t> micro_batch{};  ///< samples of a rank per forward pass; unset: its whole share
  std::string precision = "fp32";             ///< fp32 | tf32 | bf16 | fp16 | fp64
  double max_norm = 0;                        ///< 0: no clipping
  bool shuffle = true;
  bool drop_last = false;
  bool recompute = false;
  optim::LossScaleOptions loss_scale{};
};

const Fields<TrainOptions>& train_fields();

}  // namespace trireme
