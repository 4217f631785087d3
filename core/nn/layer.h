// Layer: base of our modules. A layer declares its parameters (name, shape, how to draw them) and holds them on the
// meta device; memory comes later, by name, already sliced (core/nn/parameters.h). So a model that is larger than a
// rank never exists whole, and every layout starts from the same numbers.
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
  // A declared parameter knows the address of its member: layers stay where they are made, behind a shared_ptr.
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  struct Declared {
    std::string name;  ///< inside this layer: "weight"
    shard::Init init;
    at::Tensor* member;
    shard::Placement placement;  ///< what this rank holds of it; its name is left to who knows the whole model's
  };
  [[nodiscard]] const std::vector<Declared>& declared() const { return declared_; }

  /// This rank shall hold `range` of `dim` of declared parameter `name` alone, and the ranks along mesh axis `axis` the
  /// rest. To be said before the parameter has memory.
  void cut(const std::string& name, std::int64_t dim, shard::Range range, const std::string& axis);
  /// Gives declared parameter `name` its memory. `value`, of the shape that this rank holds, becomes a leaf;
  /// requires_grad is kept.
  void place(const std::string& name, at::Tensor value);

  /// The layer's name inside the model ("vit.encoder.layer.0"), set by Model::finish(). Keys the dropout masks.
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

/// A layer that turns one tensor into another (Linear, LayerNorm, Dropout). A parallel policy may compute it its own
/// way, with the layer's own parameters.
class Unary : public Layer {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& x, const Context& context)>;
  at::Tensor forward(const at::Tensor& x, const Context& context) {
    if (instead_) return instead_(x, context);
    if (!around_) return compute(x, context);
    at::Tensor y;
    within([&] { y = compute(x, context); });
    return y;
  }
  void compute_by(Forward instead) { instead_ = std::move(instead); }
  /// Or may put something around whatever the layer computes with its parameters: stand-ins for them, say.
  using Around = std::function<void(const std::function<void()>& compute)>;
  void surround_by(Around around) { around_ = std::move(around); }
  /// What the layer computes by itself: for a policy that only adds to it.
  at::Tensor plain(const at::Tensor& x, const Context& context) { return compute(x, context); }

 protected:
  virtual at::Tensor compute(const at::Tensor& x, const Context& context) = 0;
  /// A policy computes it: what the layer knows of itself does not hold.
  [[nodiscard]] bool replaced() const { return instead_ != nullptr; }
  void within(const std::function<void()>& compute) const { around_ ? around_(compute) : compute(); }

 private:
  Forward instead_;
  Around around_;
};

}  // namespace trireme::nn
