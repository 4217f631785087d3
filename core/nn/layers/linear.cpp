#include "core/nn/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/nn/layers/fused.h"
#include "core/nn/layers/linear_cross_entropy.h"
#include "core/nn/layers/lora.h"

namespace trireme::nn {

Linear::Linear(const Options& options) : options_(options) {
  TRIREME_REQUIRE(options.in % options.in_unit == 0 && options.out % options.out_unit == 0,
                  "{} -> {} features are not multiples of the units {} and {}", options.in, options.out,
                  options.in_unit, options.out_unit);
  TRIREME_REQUIRE(!options.is_head || (options.activation == Activation::none && options.out_unit == 1),
                  "a head has no activation, and out_unit = 1");
  const double bound = 1 / std::sqrt(static_cast<double>(options.in));
  const auto within_bound = Init::uniform(-bound, bound);
  declare("weight", weight, {options.out, options.in},
          options.uniform ? within_bound : Init::normal(0, options.init_std));
  if (options.stored_transposed) store_transposed("weight");
  if (options.bias) declare("bias", bias, {options.out}, options.uniform ? within_bound : Init::zeros());
}

void Linear::set_adapter(std::shared_ptr<const LoraAdapter> adapter) {
  adapter_ = std::move(adapter);
  const auto add = [&](const std::string& name, const std::shared_ptr<Unary>& part) {
    register_module(name, part)->set_path(path() + "." + name);
  };
  add("lora_A", adapter_->a);
  add("lora_B", adapter_->b);
  add("lora_dropout", adapter_->dropout);
}

std::vector<Unary*> Linear::sharded_parts() const { return adapter_ ? adapter_->parts() : std::vector<Unary*>(); }

at::Tensor Linear::adapted(const at::Tensor& product, const at::Tensor& x, const Context& context) const {
  return adapter_ ? product + adapter_->b->forward(adapter_->reduce(x, context), context) : product;
}

at::Tensor Linear::compute(const at::Tensor& x, const Context& context) {
  if (x.size(-1) != weight.size(1))
    throw ConfigError(fmt::format(
        "\"{}\" takes {} features, but got {}: the layer before it has another width, or the policy splits "
        "that layer over ranks (attention, column_parallel) and does not give this one the role row_parallel",
        path(), weight.size(1), x.size(-1)));
  if (auto loss = this->loss(x, context); loss.defined()) return loss;
  const auto deferred = deferred_bias(x);
  return finish(adapted(at::linear(x, weight, deferred.defined() ? at::Tensor() : bias), x, context), deferred);
}

at::Tensor Linear::loss(const at::Tensor& x, const Context& context, const comm::Group* group) const {
  if (!options_.is_head || adapter_) return {};
  return loss_in_place_of_scores({x, weight, bias, options_.out, group}, context);
}

at::Tensor Linear::deferred_bias(const at::Tensor& x) const {
  const bool one_step = options_.activation == Activation::gelu && fused_;
  return one_step && bias.defined() && can_fuse({x, weight, bias}) ? bias : at::Tensor();
}

at::Tensor Linear::finish(at::Tensor product, const at::Tensor& deferred) const {
  if (options_.activation == Activation::gelu && fused_ && deferred.defined() && can_fuse({product, deferred}))
    return bias_gelu(product, deferred);
  const auto y = deferred.defined() ? product.add_(deferred) : product;
  return activate(y, options_.activation);
}

LayerNorm::LayerNorm(std::int64_t size, double eps) : size_(size), eps_(eps) {
  declare("weight", weight, {size}, Init::ones());
  declare("bias", bias, {size}, Init::zeros());
}

at::Tensor LayerNorm::compute(const at::Tensor& x, const Context&) {
  return at::layer_norm(x, {size_}, weight, bias, eps_);
}

LayerNorm::OfSum LayerNorm::of_sum(const at::Tensor& residual, const at::Tensor& x, Dropout& dropout,
                                   const Context& context) {
  if (!fused_ || forward.replaced() || !dropout.is_mask() || residual.sizes() != x.sizes() ||
      !can_fuse({x, residual, weight, bias})) {
    auto sum = dropout.add_to(residual, x, context);
    auto norm = forward(sum, context);
    return {std::move(sum), std::move(norm)};
  }
  OfSum made;
  forward.run_wrapped([&] {
    auto [sum, norm] = masked_add_norm(x, dropout.mask_of(x, context), dropout.scale(), residual, weight, bias, eps_);
    made = {std::move(sum), std::move(norm)};
  });
  return made;
}

}  // namespace trireme::nn
