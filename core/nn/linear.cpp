#include "core/nn/linear.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include "core/base/error.h"

namespace trireme::nn {

Linear::Linear(const Options& options) : options_(options) {
  TRIREME_CHECK(options.in % options.in_unit == 0 && options.out % options.out_unit == 0,
                "{} -> {} features are no whole units of {} and {}", options.in, options.out, options.in_unit,
                options.out_unit);
  declare("weight", weight, {options.out, options.in}, Init::normal(0, options.init_std));
  if (options.bias) declare("bias", bias, {options.out}, Init::zeros());
}

at::Tensor Linear::compute(const at::Tensor& x, const Context&) {
  if (x.size(-1) != weight.size(1))
    throw ConfigError(fmt::format(
        "\"{}\" takes {} features, and is given {}: what comes before it has another width, or a policy cuts "
        "it over ranks (heads, column) and does not give this layer the role row",
        path(), weight.size(1), x.size(-1)));
  return at::linear(x, weight, bias);
}

LayerNorm::LayerNorm(std::int64_t size, double eps) : size_(size), eps_(eps) {
  declare("weight", weight, {size}, Init::ones());
  declare("bias", bias, {size}, Init::zeros());
}

at::Tensor LayerNorm::compute(const at::Tensor& x, const Context&) {
  return at::layer_norm(x, {size_}, weight, bias, eps_);
}

}  // namespace trireme::nn
