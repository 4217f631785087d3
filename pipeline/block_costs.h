// The costs of a model's blocks, for the partition of a pipeline: relative to one another, in any unit. Must be
// computed before the model is sharded or has memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"
#include "core/nn/named_tensors.h"

namespace trireme::nn {
class Model;
}

namespace trireme::pipeline {

/// Number of elements of each block's parameters; a shared parameter counts for the first block that uses it.
std::vector<double> parameter_costs(nn::Model& model);

/// How blocks are profiled: one after another is given memory and random values, is run, and is freed again.
struct ProfileConfig {
  std::int64_t samples = 1;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
};
/// Floating-point operations of each block's forward pass: two for each multiplication in LibTorch's matrix products,
/// convolutions and attentions, summed over the ranks of `everyone`. `example`: the inputs of one sample, [1, ...]
/// each. Collective.
std::vector<double> flop_costs(nn::Model& model, const nn::NamedTensors& example, const ProfileConfig& config,
                               const comm::Group& everyone);

/// Seconds of each block's forward and backward pass, the best of three, summed over the ranks of `everyone`.
/// Collective.
std::vector<double> time_costs(nn::Model& model, const nn::NamedTensors& example, const ProfileConfig& config,
                               const comm::Group& everyone);

}  // namespace trireme::pipeline
