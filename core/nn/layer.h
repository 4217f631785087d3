// Layer: the base class of our modules. A layer declares its parameters (name, shape, initialisation) on the meta
// device. They get memory later, by name, and only for the slice that this rank holds (core/nn/parameters.h). A model
// that does not fit on one rank is therefore never built whole, and every parallel layout starts from the same values.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/nn/context.h"
#include "core/nn/replaceable.h"
#include "core/shard/init.h"
#include "core/shard/placement.h"

namespace trireme::nn {

using shard::Init;

class Unary;

class Layer : public torch::nn::Module {
 public:
  Layer() = default;
  // A declared parameter holds the address of its member, so a layer must not move.
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  struct Declared {
    std::string name;  ///< inside this layer, such as "weight"
    shard::Init init;
    at::Tensor* member;
    shard::Placement placement;  ///< the slice that this rank holds; the model fills in the name
    /// Of a whole parameter's memory, for kernels that would convert it in each step. Slices are always contiguous.
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };
  [[nodiscard]] const std::vector<Declared>& declared() const { return declared_; }

  /// Shards the declared parameter `name`: this rank holds `ranges` of dimension `dim`, and the other ranks along mesh
  /// axis `axis` hold the rest. There are several ranges where parts of the parameter are sharded one by one, such as
  /// queries, keys and values. A second call with another dim and another axis shards the slice further: experts by
  /// dim 0 and their outputs by the last. @pre the parameter has no memory yet
  /// @throws UsageError for a name, dim or range that does not exist, or a second cut along the dim or the axis
  void cut(const std::string& name, std::int64_t dim, std::vector<shard::Range> ranges, const std::string& axis);
  /// Gives the declared parameter `name` its memory: `value`, which has the shape that this rank holds, becomes the
  /// leaf tensor. requires_grad does not change.
  void set_storage(const std::string& name, at::Tensor value);

  /// The layer's name inside the model ("vit.encoder.layer.0"), set by Model::finish(). It is part of the key of
  /// dropout masks.
  [[nodiscard]] const std::string& path() const { return path_; }
  void set_path(std::string path) { path_ = std::move(path); }

  /// The layers inside this one that are sharded with it: a policy gives a role to this layer, not to them.
  [[nodiscard]] virtual std::vector<Unary*> sharded_parts() const { return {}; }

  /// Whether it saves memory to recompute this layer by itself: its forward pass saves large activations besides its
  /// input. It must not draw from LibTorch's generators, whose state only blocks restore.
  [[nodiscard]] virtual bool can_recompute() const { return false; }
  /// Whether the forward pass saves only its input, and the backward pass runs it again (core/nn/autograd/recompute.h).
  /// @pre can_recompute()
  virtual void set_recompute(bool on);

 protected:
  /// For constructors: `member` is the layer's own handle to the tensor.
  void declare(const std::string& name, at::Tensor& member, std::vector<std::int64_t> shape, shard::Init init,
               at::MemoryFormat format = at::MemoryFormat::Contiguous);

  /// For constructors: files hold the transpose of the declared parameter `name`, which has two dims.
  void store_transposed(const std::string& name);
  /// For constructors: files hold the declared parameter `name` as a tensor for each index of dim 0: experts, each with
  /// weights of its own. `pattern`: their names in this layer, with a '*' for the index: "experts.*.up.weight".
  /// @pre it has two dims at least, and files do not hold its transpose
  void store_unstacked(const std::string& name, const std::string& pattern);

 private:
  Declared& find(const std::string& name);
  std::vector<Declared> declared_;
  std::string path_;
};

/// The layers of type L in the module, which may be one itself: each once, even if it has several parents, and before
/// those inside it.
template <class L = Layer>
std::vector<L*> layers_in(torch::nn::Module& module) {
  std::vector<L*> found;
  std::unordered_set<const L*> seen;
  module.apply([&](torch::nn::Module& each) {
    if (auto* layer = dynamic_cast<L*>(&each); layer != nullptr && seen.insert(layer).second) found.push_back(layer);
  });
  return found;
}

/// A layer with one input and one output tensor (Linear, LayerNorm, Dropout).
class Unary : public Layer {
 public:
  Unary() : forward([this](const at::Tensor& x, const Context& context) { return compute(x, context); }) {}
  /// layer.forward(x, context): the layer's output.
  Replaceable<at::Tensor(const at::Tensor& x, const Context& context)> forward;
  void set_recompute(bool on) override;
  /// Sequence parallelism gives x as a slice of the tokens (dim 1), of which first(context) is the first one's
  /// position. For layers that use positions.
  virtual void set_first_token(std::function<std::int64_t(const Context& context)> /*first*/) {}

 protected:
  /// The parameters that forward() reads, those of children included: all.
  [[nodiscard]] virtual std::vector<at::Tensor> forward_parameters() const { return parameters(); }
  virtual at::Tensor compute(const at::Tensor& x, const Context& context) = 0;
};

}  // namespace trireme::nn
