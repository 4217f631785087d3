// Partial recompute: of each stage's blocks the first ones are computed again in the backward pass, and the others keep
// what they need. The first, since a backward pass begins at the last: what those keep is freed before the first blocks
// take memory again.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/fields.h"
#include "core/config/table.h"
#include "pipeline/partition.h"

namespace trireme::plugins {

struct RecomputeKeys {
  double recompute_ratio = 1;
  std::vector<std::int64_t> recompute_layers_per_stage;
};

/// The rows of RecomputeKeys.
template <class O>
void add_recompute_options(Fields<O>& table) {
  table
      .add("recompute_ratio", &RecomputeKeys::recompute_ratio,
           "With train.recompute: the fraction of each stage's blocks that is recomputed, from the first block on, at "
           "least one (Colossal-AI: gradient_checkpoint_config with gradient_checkpointing_ratio).",
           {.max = 1, .above = 0})
      .add("recompute_layers_per_stage", &RecomputeKeys::recompute_layers_per_stage,
           "With train.recompute: the number of blocks of each stage that are recomputed, from the first block on; one "
           "number per stage, as in num_layers_per_stage (Colossal-AI: num_ckpt_layers_per_stage).",
           {.min = 0, .max = 1e6});
}

/// Rules that need the keys alone. @throws ConfigError
void check_recompute(const config::Table* section, const RecomputeKeys& keys, bool recompute);

/// Of each block, whether it recomputes. `stages`: all of them. @throws ConfigError
std::vector<bool> recomputed_blocks(const config::Table* section, const RecomputeKeys& keys,
                                    const std::vector<pipeline::Stage>& stages);

}  // namespace trireme::plugins
