// The options of adapters (core/nn/layers/lora.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::nn {

/// Layers and modules are named as by PEFT: by their path or its last parts ("query", "attention.self.query"). A '*'
/// matches any characters except a dot.
struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 8, dropout = 0;
  /// The linear layers with adapters; "all-linear": every one but `heads`.
  std::vector<std::string> target{"all-linear"};
  /// The modules that are trained in full, and get no adapters. Unset: none.
  std::optional<std::vector<std::string>> train{};
  /// Layers whose outputs are the model's.
  std::vector<std::string> heads{};
};

}  // namespace trireme::nn
