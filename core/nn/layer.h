// Layer: the base class of our modules. A layer declares its parameters (name, shape, initialisation) on the meta
// device. They get memory later, by name, and only for the slice that this rank holds (core/nn/parameters.h). A model
// that does not fit on one rank is therefore never built whole, and every parallel layout starts from the same values.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/nn/context.h"
#include "core/shard/init.h"
#include "core/shard/placement.h"

namespace trireme::nn {

using shard::Init;

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
  };
  [[nodiscard]] const std::vector<Declared>& declared() const { return declared_; }

  /// Shards the declared parameter `name`: this rank holds `range` of dimension `dim`, and the other ranks along mesh
  /// axis `axis` hold the rest. @pre the parameter has no memory yet
  void cut(const std::string& name, std::int64_t dim, shard::Range range, const std::string& axis);
  /// Gives the declared parameter `name` its memory: `value`, which has the shape that this rank holds, becomes the
  /// leaf tensor. requires_grad does not change.
  void set_storage(const std::string& name, at::Tensor value);

  /// The layer's name inside the model ("vit.encoder.layer.0"), set by Model::finish(). It is part of the key of
  /// dropout masks.
  [[nodiscard]] const std::string& path() const { return path_; }
  void set_path(std::string path) { path_ = std::move(path); }

 protected:
  /// For constructors: `member` is the layer's own handle to the tensor.
  void declare(const std::string& name, at::Tensor& member, std::vector<std::int64_t> shape, shard::Init init);

 private:
  Declared& find(const std::string& name);
  std::vector<Declared> declared_;
  std::string path_;
};

/// A layer with one input and one output tensor (Linear, LayerNorm, Dropout). A policy can replace its computation.
class Unary : public Layer {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& x, const Context& context)>;
  at::Tensor forward(const at::Tensor& x, const Context& context) {
    if (replacement_) return replacement_(x, context);
    if (!wrapper_) return compute(x, context);
    at::Tensor y;
    within([&] { y = compute(x, context); });
    return y;
  }
  void set_forward(Forward instead) { replacement_ = std::move(instead); }
  /// `wrapper` is called with the computation and must call it exactly once; it may replace parameters meanwhile.
  using ForwardWrapper = std::function<void(const std::function<void()>& compute)>;
  void wrap_forward(ForwardWrapper wrapper) { wrapper_ = std::move(wrapper); }
  /// The layer's own computation, for a replacement that only adds to it.
  at::Tensor plain(const at::Tensor& x, const Context& context) { return compute(x, context); }

 protected:
  virtual at::Tensor compute(const at::Tensor& x, const Context& context) = 0;
  /// True when a policy has replaced the computation.
  [[nodiscard]] bool replaced() const { return replacement_ != nullptr; }
  void within(const std::function<void()>& compute) const { wrapper_ ? wrapper_(compute) : compute(); }

 private:
  Forward replacement_;
  ForwardWrapper wrapper_;
};

}  // namespace trireme::nn
