// Block and Model (design idea 1): a model is a list of blocks, and its forward is their composition. A block is the
// unit of everything: a pipeline stage is a range of blocks, recompute and gather work by block, timing is told by
// block.
//
// Two trees may hold the same layer. The model's module tree gives the names (and so weights, draws and masks); a
// block's own children give what it needs to run. Where the names do not nest by block (ViT's head owns "vit.layernorm"
// and "classifier"), the block registers layers that the model's tree names, and is itself outside that tree.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/layer.h"

namespace trireme::nn {

class Block : public Layer {
 public:
  /// All that later blocks need goes through the returned tensors.
  virtual Tensors forward(Tensors inputs, const Context& context) = 0;
  /// True when forward draws from LibTorch's generators (a user's own dropout): recompute then restores their state.
  [[nodiscard]] virtual bool uses_torch_generators() const { return false; }
};

/// How one block of a model is run: plainly, with recompute (core/nn/recompute.h), or around a gather of its weights.
using RunBlock = std::function<Tensors(const std::shared_ptr<Block>& block, Tensors inputs, const Context& context)>;

class Model : public Layer {
 public:
  /// In forward order. Valid after construction; never changes.
  [[nodiscard]] const std::vector<std::shared_ptr<Block>>& blocks() const { return blocks_; }
  /// Tokens of a sample after the first block, for sequence parallelism; 0: the model has no such thing.
  [[nodiscard]] virtual std::int64_t tokens(const Tensors& /*inputs*/) const { return 0; }
  /// Blocks one after the other, each by `run`; none: plainly.
  Tensors forward(Tensors inputs, const Context& context, const RunBlock& run = {});

  /// This rank runs these blocks alone, and the ranks along mesh axis `axis` the others: parameters that none of them
  /// uses get no memory here. To be said before the model has memory. @pre ascending
  void keep(std::vector<std::size_t> blocks, std::string axis);
  struct Kept {
    std::vector<std::size_t> blocks;
    std::string axis;
  };
  /// Unset: all blocks are here.
  [[nodiscard]] const std::optional<Kept>& kept() const { return kept_; }

 protected:
  void add_block(std::shared_ptr<Block> block) { blocks_.push_back(std::move(block)); }
  /// To be called last in a model's constructor: tells each Layer its path. A block outside the module tree keeps the
  /// path it was given, else is called "blocks.I". @throws UsageError when a block has a parameter that the model's
  /// tree does not name, or when two layers have one path.
  void finish();

 private:
  std::vector<std::shared_ptr<Block>> blocks_;
  std::optional<Kept> kept_;
};

}  // namespace trireme::nn
