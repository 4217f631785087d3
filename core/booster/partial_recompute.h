// Partial recompute: which blocks, and which layers of the other blocks, are recomputed in the backward pass.
//
// Of each pipeline stage, the first blocks are recomputed, and the others save their activations. The first ones are
// chosen because a backward pass begins with the last block: the activations saved there are freed before the first
// blocks allocate theirs again. Without a pipeline the model is one stage.
#pragma once

#include <cstdint>
#include <vector>

#include "core/booster/train_options.h"

namespace trireme::nn {
class Layer;
class Model;
}  // namespace trireme::nn

namespace trireme {

struct RunSettings;

/// Returns for each block whether it is recomputed when train.recompute is set. `stages`: the number of blocks of each
/// stage, in forward order. @throws ConfigError
std::vector<bool> recomputed_blocks(const TrainOptions& train, const std::vector<std::int64_t>& stages);

/// The layers that train.recompute_modules names, each once: those of the blocks that are not recomputed themselves
/// (`blocks`, as recomputed_blocks() returns them), and none inside another of them. @throws ConfigError for a name
/// that matches no layer that can be recomputed, and when none is left
std::vector<nn::Layer*> recomputed_layers(nn::Model& model, const TrainOptions& train, const std::vector<bool>& blocks);

/// Checks all keys about recomputation. `stages`: empty when they are not known yet. @throws ConfigError
void check_recompute(nn::Model& model, const RunSettings& run, const std::vector<std::int64_t>& stages);

}  // namespace trireme
