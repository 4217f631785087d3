// What each block of a model costs, for the partition of a pipeline: blocks against one another, in any unit. To be
// asked before anything is cut, and before the model has memory.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "core/comm/group.h"
#include "core/nn/context.h"

namespace trireme::nn {
class Model;
}

namespace trireme::plugins {

/// Elements of each block's parameters; shared ones count where they are used first.
std::vector<double> parameter_costs(nn::Model& model);

/// How blocks are tried: one after the other gets memory and random values, runs, and gives the memory back.
struct ProfileConfig {
  std::int64_t samples = 1;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
};
/// Floating-point operations of each block's forward pass: two for each multiplication in LibTorch's products of
/// matrices, convolutions and attentions; added up over the ranks of `everyone`. `example`: a sample's inputs, [1, ...]
/// each. Collective.
std::vector<double> flop_costs(nn::Model& model, const nn::Tensors& example, const ProfileConfig& config,
                               const comm::Group& everyone);

/// Seconds of each block's forward and backward pass, the best of three, added up over the ranks of `everyone`.
/// Collective.
std::vector<double> time_costs(nn::Model& model, const nn::Tensors& example, const ProfileConfig& config,
                               const comm::Group& everyone);

}  // namespace trireme::plugins
