// GeneratorStateGuard: runs a user's own modules, which may draw from LibTorch's default generators, without an effect
// on the numbers that are drawn later.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <utility>
#include <vector>

namespace trireme::nn {

/// Restores the default generators of the CPU and of `device` when it is destroyed.
class GeneratorStateGuard {
 public:
  explicit GeneratorStateGuard(c10::Device device) {
    save(at::kCPU);
    if (device.is_cuda()) save(device);
  }
  ~GeneratorStateGuard() {
    for (auto& [generator, state] : saved_states_) generator.set_state(state);
  }
  GeneratorStateGuard(const GeneratorStateGuard&) = delete;
  GeneratorStateGuard& operator=(const GeneratorStateGuard&) = delete;

 private:
  void save(c10::Device device) {
    const auto& generator = at::globalContext().defaultGenerator(device);
    saved_states_.emplace_back(generator, generator.get_state());
  }
  std::vector<std::pair<at::Generator, at::Tensor>> saved_states_;
};

}  // namespace trireme::nn
