// Block and Model: a model is a list of blocks, and its forward pass runs them one after the other. A pipeline stage is
// a range of blocks. Recomputation, gathering of weights and timing are done block by block.
//
// A layer can be in two module trees. The model's tree gives the names (of weights, random draws and dropout masks); a
// block's tree holds what the block needs to run. Where names do not nest by block (ViT's head uses "vit.layernorm" and
// "classifier"), the block registers layers of the model's tree and is itself not part of that tree.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/layer.h"
#include "core/nn/naming.h"

namespace trireme::nn {

class Block : public Layer {
 public:
  /// Later blocks see only the returned tensors.
  virtual Tensors forward(Tensors inputs, const Context& context) = 0;
  /// True when forward() draws from LibTorch's generators, as a user's own dropout does. Recomputation then restores
  /// the state of the generators.
  [[nodiscard]] virtual bool uses_torch_generators() const { return false; }
  /// Whether forward() returns what a head made, as it is and alone: a linear layer with Options::is_head, the scores
  /// of an embedding. As the last block it may then return the loss in place of the scores (Context::loss_of_head), if
  /// the model has releases_outputs().
  [[nodiscard]] virtual bool returns_scores() const { return false; }
};

/// Runs one block of a model: directly, with recomputation (core/nn/autograd/recompute.h), or with an all-gather of its
/// weights.
using RunBlock = std::function<Tensors(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context)>;

class Model : public Layer {
 public:
  /// In forward order. Valid after construction; never changes.
  [[nodiscard]] const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }
  /// The inputs of the data that the first block receives, in this order. Empty: all of them that are not side inputs,
  /// in the data's order.
  [[nodiscard]] virtual std::vector<std::string> input_names() const { return {}; }
  /// The inputs of the data that any block may read in Context::side, such as "attention_mask". They are small: each
  /// pipeline stage reads them from the data itself. The data may lack them.
  [[nodiscard]] virtual std::vector<std::string> side_input_names() const { return {}; }
  /// The first block's inputs, out of a batch's. @throws UsageError when one is missing
  [[nodiscard]] Tensors first_inputs(const NamedTensors& inputs) const;
  [[nodiscard]] NamedTensors side_inputs(const NamedTensors& inputs) const;
  /// The number of tokens of a sample after the first block, for sequence parallelism; 0 when the model has no tokens.
  [[nodiscard]] virtual std::int64_t tokens(const Tensors& /*inputs*/) const { return 0; }
  /// How to convert a stored tensor of shape `from` to the parameter `name` of shape `to`, such as position embeddings
  /// for images of another size. The shapes may be equal. Empty: it is used as it is if they are, else it does not fit.
  [[nodiscard]] virtual Conversion conversion(const std::string& /*name*/, at::IntArrayRef /*from*/,
                                              at::IntArrayRef /*to*/) const {
    return {};
  }
  /// Whether nothing reads the outputs once forward() has made them, so that a loss may overwrite them. A last layer
  /// whose gradient is computed from its output, such as tanh, reads it in the backward pass.
  [[nodiscard]] virtual bool releases_outputs() const { return false; }
  /// Other libraries' names of the parameters, by which stored ones are found too.
  [[nodiscard]] virtual std::vector<Naming> namings() const { return {}; }
  /// The name of a parameter, or of a module, in transformers' modules and so in PEFT's files (Naming::of_modules).
  [[nodiscard]] std::string name_in_modules(const std::string& parameter) const;
  [[nodiscard]] std::string module_in_modules(const std::string& path) const;
  /// Tensors that files of weights may have and the model does not need.
  [[nodiscard]] virtual std::vector<RedundantTensor> redundant_tensors() const { return {}; }
  /// Runs the blocks one after the other, each through `run` if it is set.
  Tensors forward(Tensors inputs, const Context& context, const RunBlock& run = {});

  /// Restricts this rank to these blocks; the other ranks along mesh axis `axis` run the others. Parameters that none
  /// of these blocks uses get no memory on this rank. @pre `blocks` is in ascending order, and no parameter has memory
  /// yet
  void keep_stage_blocks(std::vector<std::size_t> blocks, std::string axis);
  struct StageBlocks {
    std::vector<std::size_t> blocks;
    std::string axis;
  };
  /// The loss scale of the training, 0-dim, which changes in place; undefined: none. The Booster sets it, for
  /// Context::loss_scale.
  void set_loss_scale(at::Tensor scale) { loss_scale_ = std::move(scale); }
  [[nodiscard]] const at::Tensor& loss_scale() const { return loss_scale_; }
  /// Unset when this rank runs all blocks.
  [[nodiscard]] const std::optional<StageBlocks>& stage_blocks() const { return stage_blocks_; }

 protected:
  void add_block(std::shared_ptr<Block> block) { blocks_.push_back(std::move(block)); }
  /// Must be the last call in a model's constructor: it sets each layer's path. A block outside the module tree keeps
  /// the path that it was given; if it has none, its path becomes "blocks.I". @throws UsageError when a block has a
  /// parameter that is not in the model's tree, or when two layers have the same path
  void finish();

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
  std::optional<StageBlocks> stage_blocks_;
  at::Tensor loss_scale_;
};

}  // namespace trireme::nn
