// Partial recompute: the first blocks of each stage are recomputed in the backward pass, and the others save their
// activations. The first ones are chosen because a backward pass begins with the last block: the activations saved
// there are freed before the first blocks allocate theirs again.
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

/// Checks the rules that need only the keys. @throws ConfigError
void check_recompute(const config::Table* section, const RecomputeKeys& keys, bool recompute);

/// Returns for each block whether it is recomputed. `stages`: those of all ranks. @throws ConfigError
std::vector<bool> recomputed_blocks(const config::Table* section, const RecomputeKeys& keys,
                                    const std::vector<pipeline::Stage>& stages);

}  // namespace trireme::plugins
