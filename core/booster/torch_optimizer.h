// Reads the options of a torch::optim optimizer, so that a plugin can make its own one that updates alike.
#pragma once

#include <vector>

#include "core/nn/parameters.h"
#include "core/optim/optimizer.h"

namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// AdamW, Adam and SGD, with their parameter groups. `parameters`: of the model, by name; those that are in none of the
/// optimizer's groups are frozen.
/// @throws UsageError for another optimizer, for options that Trireme's optimizers do not have (amsgrad), for groups
/// that differ in more than learning rate and weight decay, for state, and for parameters of another model
optim::OptimizerOptions optimizer_options(torch::optim::Optimizer& optimizer,
                                          const std::vector<nn::Declaration>& parameters);

}  // namespace trireme
