#include "core/nn/layers/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "core/base/autocast.h"
#include "core/base/error.h"
#include "core/base/planned_device.h"
#include "core/nn/autograd/saved_state.h"
#include "core/nn/layers/loss_rows.h"

namespace trireme::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of scores at once. Products of fewer rows would mostly wait for the gradient of W, which each of them adds to.
constexpr std::int64_t kChunkBytes = 64 << 20, kDeviceChunkBytes = 256 << 20;

at::ScalarType wide_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

/// Those of a HeadRowsScope; 0: there is none.
std::atomic<std::int64_t> scope_rows{0}, scope_losses{0};

/// The rows of a chunk, as even as possible. Of the largest share of the classes, so that each rank has the same.
std::int64_t rows_at_once(const Head& head, std::int64_t rows) {
  if (const auto set = scope_rows.load()) return set;
  const auto ranks = head.group != nullptr ? head.group->size() : 1;
  const auto row =
      (head.classes + ranks - 1) / ranks * static_cast<std::int64_t>(c10::elementSize(wide_type(head.x.scalar_type())));
  const auto bytes = type_of(head.x.device()) == c10::kCPU ? kChunkBytes : kDeviceChunkBytes;
  const auto most = std::max<std::int64_t>(1, bytes / std::max<std::int64_t>(1, row));
  const auto chunks = std::max<std::int64_t>(1, (rows + most - 1) / most);
  return (rows + chunks - 1) / chunks;
}

/// Disables autocast in a scope.
class NoAutocast {
 public:
  explicit NoAutocast(const AutocastState& before) : before_(before) {
    if (before_.enabled) AutocastState{before_.device, false, before_.dtype}.apply();
  }
  ~NoAutocast() {
    if (before_.enabled) before_.apply();
  }
  NoAutocast(const NoAutocast&) = delete;
  NoAutocast& operator=(const NoAutocast&) = delete;

 private:
  AutocastState before_;
};

/// How the forward pass computes, and what it leaves for the backward pass.
struct HeadState {
  std::int64_t rows = 0;             ///< of a chunk
  std::optional<comm::Group> group;  ///< unset: this rank has all classes
  LossRows targets{};
  at::Tensor loss_gradient{};
  bool of_x = false, of_weight = false, of_bias = false;  ///< whose gradients are wanted
  comm::Work sum_of_x{};                                  ///< adds up the gradients of x
  std::array<at::Tensor, 3> gradients{};                  ///< of x, weight and bias
  std::size_t inputs = 0;                                 ///< 2 without a bias

  [[nodiscard]] bool trains() const { return of_x || of_weight || of_bias; }
};

/// The gradients, as they are added up over the chunks.
class HeadGradients {
 public:
  HeadGradients(const at::Tensor& x, const at::Tensor& weight, at::ScalarType wide, const HeadState& of) {
    if (of.of_x) x_ = at::empty_like(x);
    if (of.of_weight) weight_ = at::zeros(weight.sizes(), weight.options().dtype(wide));
    if (of.of_bias) bias_ = at::zeros({weight.size(0)}, weight.options().dtype(wide));
  }
  /// `of_scores`: of the rows from `begin`.
  void add(std::int64_t begin, const at::Tensor& of_scores, const at::Tensor& x, const at::Tensor& weight) {
    if (bias_.defined()) bias_.add_(of_scores.sum(0));
    const auto narrow = of_scores.to(x.scalar_type());
    if (x_.defined()) {
      auto place = x_.narrow(0, begin, x.size(0));
      at::mm_out(place, narrow, weight);
    }
    if (!weight_.defined()) return;
    if (weight_.scalar_type() == narrow.scalar_type())
      weight_.addmm_(narrow.t(), x);
    else
      weight_.add_(at::mm(narrow.t(), x));
  }

  /// Those of x, weight and bias, in `dtype`; undefined where they are not wanted.
  std::array<at::Tensor, 3> take(at::ScalarType dtype) {
    for (auto* sum : {&weight_, &bias_})
      if (sum->defined()) *sum = sum->to(dtype);
    return {std::move(x_), std::move(weight_), std::move(bias_)};
  }
  [[nodiscard]] const at::Tensor& of_x() const { return x_; }

 private:
  at::Tensor x_, weight_, bias_;
};

struct LinearLoss : torch::autograd::Function<LinearLoss> {
  /// `of`: x [N, features], the weight, and the bias if there is one, in one dtype.
  static at::Tensor forward(AutogradContext* ctx, const std::shared_ptr<HeadState>& state, at::TensorList of) {
    const auto &x = of[0], &weight = of[1];
    const auto bias = of.size() > 2 ? of[2] : at::Tensor();
    const auto wide = state->targets.of_log.scalar_type();
    HeadGradients gradients(x, weight, wide, *state);
    auto loss = at::zeros({}, state->targets.of_log.options());
    const auto memory = at::empty({std::min(state->rows, x.size(0)), weight.size(0)}, x.options());
    for (std::int64_t begin = 0; begin < x.size(0); begin += state->rows) {
      const auto count = std::min(state->rows, x.size(0) - begin);
      const auto part = x.narrow(0, begin, count);
      const auto targets = state->targets.narrow(begin, count);
      auto made = memory.narrow(0, 0, count);
      if (bias.defined())
        at::addmm_out(made, bias, part, weight.t());
      else
        at::mm_out(made, part, weight.t());
      auto scores = made.to(wide);
      loss += to_gradients(scores, targets, *state);
      if (state->trains()) gradients.add(begin, scores, part, weight);
    }
    if (state->group && state->of_x) state->sum_of_x = state->group->all_reduce_async(gradients.of_x());
    state->targets = {};
    state->gradients = gradients.take(x.scalar_type());
    save_state(ctx, state);
    return loss;
  }

  /// Returns the loss of scores. If gradients are wanted, makes those of the scores, in their memory.
  static at::Tensor to_gradients(at::Tensor& scores, const LossRows& targets, const HeadState& state) {
    RowSums by_row(scores.size(0), scores.options());
    const auto scaled = state.loss_gradient.defined() ? targets * state.loss_gradient : targets;
    const auto find_largest = [&](std::int64_t at, std::int64_t rows) {
      by_row.find_largest(scores.narrow(0, at, rows), at);
    };
    const auto add_up = [&](std::int64_t at, std::int64_t rows) {
      const auto shifted = scores.narrow(0, at, rows).sub_(by_row.largest.narrow(0, at, rows).unsqueeze(1));
      targets.narrow(at, rows).add_up(shifted, by_row.sums.narrow(1, at, rows));
    };
    const auto make_gradient = [&](std::int64_t at, std::int64_t rows) {
      const auto of_rows = scaled.narrow(at, rows);
      const auto factor = of_rows.of_log / by_row.sums[0].narrow(0, at, rows);
      of_rows.complete_gradient(scores.narrow(0, at, rows).mul_(factor.unsqueeze(1)));
    };
    const auto for_parts = [&](const auto& use) { for_row_chunks(scores, scores.scalar_type(), use); };
    if (state.group) {
      for_parts(find_largest);
      state.group->all_reduce(by_row.largest, comm::ReduceOp::max);
      for_parts(add_up);
      state.group->all_reduce(by_row.sums);
      if (state.trains()) for_parts(make_gradient);
    } else {
      for_parts([&](std::int64_t at, std::int64_t rows) {
        find_largest(at, rows);
        add_up(at, rows);
        if (state.trains()) make_gradient(at, rows);
      });
    }
    return targets.loss(by_row.sums);
  }

  // A backward pass may ask for the gradient of x first, and for the others later.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto state = saved_state<HeadState>(ctx);
    const auto scale = state->loss_gradient.defined() ? grads[0] / state->loss_gradient : grads[0];
    variable_list result(1);  // for `state`, which has none
    for (std::size_t i = 0; i < state->inputs; ++i) {
      auto& gradient = result.emplace_back();
      if (!ctx->needs_input_grad(i)) continue;
      TRIREME_CHECK(state->gradients[i].defined(), "the gradient of a head was asked for again");
      if (i == 0) state->sum_of_x.wait();
      gradient = std::exchange(state->gradients[i], {}).mul_(scale);
    }
    return result;
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const Head& head, const at::Tensor& labels, const CrossEntropyOptions& options,
                                std::optional<std::int64_t> rows) {
  const auto& group = head.group;
  const auto mine =
      group != nullptr ? shard::split(head.classes, group->size(), group->rank()) : shard::Range{0, head.classes};
  TRIREME_CHECK(head.weight.dim() == 2 && head.weight.size(0) == mine.size() && head.x.size(-1) == head.weight.size(1),
                "a loss over {} of {} classes got a head of {} for {} features", mine.size(), head.classes,
                head.weight.size(0), head.x.size(-1));
  const auto autocast = AutocastState::current(type_of(head.x.device()));
  const bool casts = autocast.enabled && head.x.scalar_type() != at::kDouble;
  const auto dtype = casts ? autocast.dtype : head.x.scalar_type();
  const NoAutocast no_autocast(autocast);
  const auto state = std::make_shared<HeadState>();
  const auto targets = target_rows(head.x, labels, head.classes, options, wide_type(dtype));
  state->targets = LossRows(targets, mine, head.classes, options.label_smoothing);
  state->rows = rows.value_or(rows_at_once(head, state->targets.size()));
  if (group != nullptr) state->group = *group;
  state->loss_gradient = head.loss_gradient;
  const bool trains = at::GradMode::is_enabled();
  state->of_x = trains && head.x.requires_grad();
  state->of_weight = trains && head.weight.requires_grad();
  state->of_bias = trains && head.bias.defined() && head.bias.requires_grad();
  variable_list of{head.x.reshape({-1, head.x.size(-1)}).to(dtype), head.weight.to(dtype)};
  if (head.bias.defined()) of.push_back(head.bias.to(dtype));
  state->inputs = of.size();
  return LinearLoss::apply(state, at::TensorList(of));
}

at::Tensor loss_in_place_of_scores(Head head, const Context& context) {
  if (!context.training || !context.loss_of_head) return {};
  const auto features = head.x.size(-1), rows = head.x.numel() / features;
  // With fewer rows than features the gradient of W, which lives as long as the scores would, is the larger of the two.
  const bool saves = (rows > features || !head.weight.requires_grad()) && rows_at_once(head, rows) < rows;
  if (!saves && scope_rows == 0) return {};
  if (context.loss_weight.defined()) head.loss_gradient = context.loss_weight.reciprocal();
  if (context.loss_weight.defined() && context.loss_scale.defined())
    head.loss_gradient = context.loss_scale * head.loss_gradient;
  ++scope_losses;
  return context.loss_of_head(head);
}

HeadRowsScope::HeadRowsScope(std::int64_t rows) {
  scope_rows = rows;
  scope_losses = 0;
}
HeadRowsScope::~HeadRowsScope() { scope_rows = 0; }
std::int64_t HeadRowsScope::losses() { return scope_losses; }

}  // namespace trireme::nn
