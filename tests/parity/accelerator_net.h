// A user's module for the tests of ddp() and Accelerator: reference()'s adapted model, as a program would write it.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <string>
#include <vector>

#include "tests/parity/layout.h"
#include "tests/ranks/world.h"

namespace trireme::tests {

struct UserNetImpl : torch::nn::Module {
  explicit UserNetImpl(const Case& c)
      : first(register_module("1", torch::nn::Linear(3 * c.pixels * c.pixels, c.hidden))),
        second(register_module("3", torch::nn::Linear(c.hidden, 5))) {
    to(world().device(), at::kDouble);
    const at::NoGradGuard no_grad;
    const auto values = start(c);
    for (auto& item : named_parameters()) item.value().copy_(values.at(item.key()));
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x.flatten(1)).tanh()); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(UserNet);

/// The case's AdamW, with a group for the biases, which do not decay.
inline torch::optim::AdamW user_adamw(UserNet& net) {
  const auto options = [](double weight_decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(1e-2).weight_decay(weight_decay));
  };
  return torch::optim::AdamW(
      {torch::optim::OptimizerParamGroup({net->first->weight, net->second->weight}, options(0.1)),
       torch::optim::OptimizerParamGroup({net->first->bias, net->second->bias}, options(0))},
      torch::optim::AdamWOptions(1e-2));
}

/// Two epochs of a case that user_adamw() trains: 19 samples in steps of 8, 8 and 3.
inline Case user_case() {
  return {.name = "user", .samples = 19, .steps = 6, .max_norm = 0.5, .no_decay = {"bias"}, .adapted = true};
}

}  // namespace trireme::tests
