// LoRA: trained low-rank additions to the weights of linear layers, whose own weights are frozen. Hu et al., "LoRA:
// Low-Rank Adaptation of Large Language Models", 2021.
//
//   y = x W^T + b + alpha / r * dropout(x) A^T B^T          A [r, in], B [out, r]
//
// A and B are children of the layer, with the names that Hugging Face's PEFT gives them: "query.lora_A.weight". B is
// zero at first, so that training starts from the model's own outputs. Parallelism replaces the computations of A, B
// and the dropout, and a layer adds what they return (Linear::adapted()).
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/nn/layers/linear.h"
#include "core/nn/lora_options.h"
#include "core/nn/naming.h"

namespace trireme::nn {

class Model;

struct LoraAdapter {
  std::shared_ptr<Linear> a, b;
  std::shared_ptr<Dropout> dropout;
  double scale;  ///< alpha / r

  /// A, B and the dropout.
  [[nodiscard]] std::vector<Unary*> parts() const { return {a.get(), b.get(), dropout.get()}; }
  /// x [..., in] -> scale * dropout(x) A^T, [..., r]: what B is applied to.
  [[nodiscard]] at::Tensor reduce(const at::Tensor& x, const Context& context) const;
};

/// Adds the adapters and freezes all other parameters, except those of LoraOptions::train. The model's own modules are
/// also frozen. @pre the parameters that the adapted layers declare have no memory yet
/// @throws ConfigError, which begins with "lora.target: ", "lora.train: " or "lora.rank: "
void add_lora(Model& model, const LoraOptions& options);

/// The layers with adapters, in registration order; all of them, on every rank.
std::vector<Linear*> adapted_layers(Model& model);
/// The last parts of their paths, sorted, each once: "query".
std::vector<std::string> last_parts(const std::vector<Linear*>& layers);
/// The paths of the modules that are trained in full, without those inside another, in registration order.
std::vector<std::string> trained_modules(Model& model);

/// What PEFT saves in full. It gives each of these modules a tensor of its own, also where the model ties two tensors,
/// so that a tensor and its copies (Model::redundant_tensors()) must be saved together.
struct SavedModules {
  /// trained_modules(), those of `loaded`, and those of copies, without those inside another
  std::vector<std::string> paths;
  std::vector<RedundantTensor> copies;  ///< the tied tensors of these modules, which the model has under another name
};
/// `loaded`: the names of further parameters, which are not trained but came with the adapters.
SavedModules saved_modules(Model& model, const std::set<std::string>& loaded = {});

}  // namespace trireme::nn
