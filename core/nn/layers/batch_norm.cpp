#include "core/nn/layers/batch_norm.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/base/error.h"
#include "core/nn/autograd/saved_state.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Per-channel values [channels] in the shape that broadcasts over x [B, channels, ...].
at::Tensor beside(const at::Tensor& values, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

/// Sums x [B, channels, ...] over all dims but the channels: [channels].
at::Tensor channel_sums(const at::Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return x.sum(dims);
}

struct Statistics {
  at::Tensor mean, variance;  ///< [channels]; the variance is biased
  at::Tensor count;           ///< values of a channel on all ranks, [1]; 1 when there are none
};

/// The second pass over x, for the variance, keeps the precision that a sum of squares would lose.
Statistics statistics_of(const at::Tensor& x, const SumsOverRanks::Sum& sum_over_ranks) {
  const auto values = x.numel() / x.size(1);
  auto sums = at::cat({channel_sums(x), at::full({1}, values, x.options())});
  sum_over_ranks(sums);
  Statistics out;
  out.count = sums.narrow(0, x.size(1), 1).clamp_min(1);
  out.mean = sums.narrow(0, 0, x.size(1)) / out.count;
  auto squares = channel_sums((x - beside(out.mean, x)).square());
  sum_over_ranks(squares);
  out.variance = squares / out.count;
  return out;
}

/// (x - mean) * scale * weight + bias, where mean and scale = 1 / sqrt(variance + eps) are functions of the x of all
/// ranks: the gradient of x therefore contains two sums over the ranks.
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& scale, const at::Tensor& count,
                            const std::shared_ptr<SumsOverRanks::Sum>& sum_over_ranks) {
    ctx->save_for_backward({x, weight, mean, scale, count});
    save_state(ctx, sum_over_ranks);
    return at::addcmul(beside(bias, x), x - beside(mean, x), beside(scale * weight, x));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3], &count = saved[4],
               &dy = grads[0];
    const auto normal = (x - beside(mean, x)) * beside(scale, x);
    const auto d_bias = channel_sums(dy), d_weight = channel_sums(dy * normal);
    at::Tensor d_x;
    if (ctx->needs_input_grad(0)) {  // on all ranks or on none
      auto sums = at::cat({d_bias, d_weight});
      (*saved_state<SumsOverRanks::Sum>(ctx))(sums);
      const auto means = (sums / count).chunk(2);
      d_x = (dy - beside(means[0], x) - normal * beside(means[1], x)) * beside(scale * weight, x);
    }
    return {d_x, d_weight, d_bias, {}, {}, {}, {}};
  }
};

}  // namespace

BatchNorm::BatchNorm(const Options& options) : options_(options) {
  declare("weight", weight, {options.channels}, options.starts_at_zero ? Init::zeros() : Init::ones());
  declare("bias", bias, {options.channels}, Init::zeros());
  running_mean = register_buffer("running_mean", at::zeros({options.channels}));
  running_var = register_buffer("running_var", at::ones({options.channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor BatchNorm::compute(const at::Tensor& x, const Context& context) {
  if (x.dim() < 2 || x.size(1) != options_.channels)
    throw ConfigError(fmt::format("\"{}\" takes [samples, {} channels, ...], but its input has the shape [{}]", path(),
                                  options_.channels, fmt::join(x.sizes(), ", ")));
  // 16 bits have neither the range nor the precision for sums over a batch; LibTorch's kernel then sums in 32 itself.
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto w = weight.to(type), b = bias.to(type);
  if (!context.training || !sum_over_ranks) return alone(x, w, b, context.training);
  return over_ranks(x.to(type), w, b).to(x.scalar_type());
}

at::Tensor BatchNorm::alone(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, bool training) {
  const auto values = x.numel() / options_.channels;
  if (values == 0) return x * beside(w, x) + beside(b, x);
  // One value has no variance, so the running statistics stay as they are.
  const bool tracks = !training || values > 1;
  if (training && tracks) num_batches_tracked.add_(1);
  const auto stored = [&](const at::Tensor& buffer) { return tracks ? buffer : at::Tensor(); };
  return at::batch_norm(x, w, b, stored(running_mean), stored(running_var), training, options_.momentum, options_.eps,
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor BatchNorm::over_ranks(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  Statistics batch;
  at::Tensor scale;
  {
    const at::NoGradGuard no_grad;
    batch = statistics_of(x.detach(), sum_over_ranks);
    scale = (batch.variance + options_.eps).rsqrt();
    // As in alone(), one value changes no running statistics; the host does not know the count of all ranks.
    const auto tracks = batch.count.gt(1);
    const auto type = running_mean.scalar_type();
    num_batches_tracked.add_(tracks.squeeze());
    const auto momentum = tracks.to(type) * options_.momentum;
    running_mean.lerp_(batch.mean.to(type), momentum);
    const auto unbiased = batch.variance * (batch.count / (batch.count - 1).clamp_min(1));
    running_var.lerp_(unbiased.to(type), momentum);
  }
  return Normalise::apply(x, w, b, batch.mean, scale, batch.count, std::make_shared<Sum>(sum_over_ranks));
}

}  // namespace trireme::nn
