// An extension with one of each: a data set, a model, a sharding role, a task, an optimizer, a learning-rate schedule,
// a pipeline schedule and a callback. The file own_everything.toml selects them by name, with their own keys:
//
//   trireme train own_everything.toml --ranks 2 --set 'run.extensions=["/path/to/own_everything.so"]'
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/optim/slotwise.h"
#include "core/pipeline/schedules.h"
#include "core/setup/extension.h"
#include "core/shardformer/role.h"
#include "core/train/callback.h"
#include "core/train/report/console.h"
#include "core/tune/switches.h"
#include "shardformer/sequence/slices.h"
#include "shardformer/tensor/collectives.h"
#include "shardformer/tensor/features.h"
#include "trireme.h"

namespace {

namespace nn = trireme::nn;
namespace data = trireme::data;
namespace optim = trireme::optim;
namespace pipeline = trireme::pipeline;
namespace shardformer = trireme::shardformer;
using trireme::Fields;

// --- [data] name = "waves": sine waves, whose frequency and amplitude are to be found.

struct WaveOptions {
  std::int64_t samples = 600, points = 32;
  double noise = 0.05;
};

class Waves : public data::Dataset {
 public:
  Waves(const WaveOptions& options, std::string split, std::int64_t size)
      : options_(options), split_(std::move(split)), size_(size) {}
  std::int64_t size() const override { return size_; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto key = trireme::random::mix(trireme::random::hash(split_), static_cast<std::uint64_t>(index));
    auto draw = [key, n = std::uint64_t{0}]() mutable { return trireme::random::uniform(key, n++); };
    const double frequency = 0.5 + draw(), amplitude = 0.5 + draw(), phase = draw();
    std::vector<double> noise(static_cast<std::size_t>(options_.points));
    for (auto& value : noise) value = options_.noise * (2 * draw() - 1);
    const auto time = at::arange(options_.points, at::kDouble) * (6.2831853 / static_cast<double>(options_.points));
    const auto wave = amplitude * at::sin(frequency * time + phase) + at::tensor(noise, at::kDouble);
    return data::Sample{{{"wave", wave}}, {{"labels", at::tensor({frequency, amplitude}, at::kDouble)}}};
  }

 private:
  WaveOptions options_;
  std::string split_;
  std::int64_t size_;
};

data::DatasetFactory waves() {
  static const auto fields =
      Fields<WaveOptions>("data", "Sine waves of one frequency and amplitude each.")
          .with("name", "waves")
          .add("samples", &WaveOptions::samples, "Number of waves for training.", {.min = 1, .max = 1e9})
          .add("points", &WaveOptions::points, "Points of a wave.", {.min = 2, .max = 1e6})
          .add("noise", &WaveOptions::noise, "Largest error of a point.", {.min = 0});
  return {fields, WaveOptions{}, [](const WaveOptions& options, const data::OpenContext&) {
            data::Datasets out;
            out.train = std::make_shared<Waves>(options, "train", options.samples);
            out.validation = std::make_shared<Waves>(options, "validation", options.samples / 5 + 1);
            out.info.spec = out.train->spec();
            out.info.source = "waves";
            return out;
          }};
}

// --- A layer: a mixture of experts, all of which see each sample. No role of Trireme's splits such a layer.

class Mixture : public nn::Unary {
 public:
  Mixture(std::int64_t width, std::int64_t experts) : experts_(experts) {
    declare("gate", gate, {experts, width}, nn::Init::normal(0, 0.2));
    declare("up", up, {experts, width, width}, nn::Init::normal(0, 0.2));
    declare("down", down, {experts, width, width}, nn::Init::normal(0, 0.2));
    store_unstacked("up", "experts.*.up.weight");  // files hold an expert's weights by themselves
    store_unstacked("down", "experts.*.down.weight");
  }
  std::int64_t experts() const { return experts_; }
  // The weight of each expert for each sample: x [B, width] -> [B, experts].
  static at::Tensor shares(const at::Tensor& x, const at::Tensor& gate) { return at::softmax(at::linear(x, gate), -1); }
  // The sum over the experts that `up` and `down` hold.
  at::Tensor sum(const at::Tensor& x, const at::Tensor& shares) const {
    const auto each = at::matmul(at::gelu(at::matmul(x, up)), down);  // [experts, B, width]
    return (shares.t().unsqueeze(-1) * each).sum(0);
  }

  at::Tensor gate, up, down;

 protected:
  at::Tensor compute(const at::Tensor& x, const nn::Context&) override { return sum(x, shares(x, gate)); }

 private:
  std::int64_t experts_;
};

// --- The role "experts" for it: each rank holds some of the experts, and the ranks' sums are added.

std::string validate_experts(const Mixture& layer, const shardformer::ParallelSizes& sizes) {
  if (sizes.tensor <= layer.experts()) return "";
  return fmt::format("{} ranks cannot share {} experts of \"{}\"; choose at most {}", sizes.tensor, layer.experts(),
                     layer.path(), layer.experts());
}

void cut_experts(Mixture& layer, const shardformer::ParallelContext& how) {
  const auto& group = how.groups.tensor;
  const auto mine = shardformer::units_of(layer.experts(), 1, group);
  for (const auto* name : {"up", "down"}) layer.cut(name, 0, {mine}, group.axis());
  layer.forward.replace([&layer, group, mine](const at::Tensor& x, const nn::Context&) {
    // Every rank has all of x and of the gate; from its experts it gets a part of their gradients.
    const auto whole = shardformer::sum_gradients({x, layer.gate}, group);
    const auto shares = Mixture::shares(whole[0], whole[1]).narrow(1, mine.begin, mine.size());
    return shardformer::sum_over(layer.sum(whole[0], shares), group);
  });
}

shardformer::TensorRole experts() {
  return {.rule = shardformer::rule_for<Mixture>("a mixture of experts", cut_experts, validate_experts),
          .tokens = shardformer::TensorRole::Tokens::all_to_full};
}

// --- [model] name = "wave_net": a residual MLP, whose hidden layers and mixture tensor parallelism shards.

struct NetOptions {
  std::int64_t width = 32, depth = 2, experts = 3;
  std::int64_t points = 0, outputs = 0;  // from the data
};

std::shared_ptr<nn::Unary> linear(std::int64_t in, std::int64_t out) {
  return std::make_shared<nn::Linear>(nn::Linear::Options{.in = in, .out = out, .init_std = 0.2});
}

class Outer : public nn::Block {  // the first and the last layer
 public:
  Outer(std::int64_t in, std::int64_t out) : dense_(register_module("dense", linear(in, out))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {dense_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::Unary> dense_;
};

class Hidden : public nn::Block {
 public:
  explicit Hidden(std::int64_t width)
      : up_(register_module("up", linear(width, 2 * width))),
        down_(register_module("down", linear(2 * width, width))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {inputs[0] + down_->forward(at::gelu(up_->forward(inputs[0], context)), context)};
  }

 private:
  std::shared_ptr<nn::Unary> up_, down_;
};

class Mixed : public nn::Block {
 public:
  Mixed(std::int64_t width, std::int64_t experts)
      : mixture_(register_module("mixture", std::make_shared<Mixture>(width, experts))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {inputs[0] + mixture_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<Mixture> mixture_;
};

class WaveNet : public nn::Model {
 public:
  explicit WaveNet(const NetOptions& o) {
    add_block(register_module("first", std::make_shared<Outer>(o.points, o.width)));
    for (std::int64_t i = 0; i < o.depth; ++i)
      add_block(register_module("hidden" + std::to_string(i), std::make_shared<Hidden>(o.width)));
    add_block(register_module("mixed", std::make_shared<Mixed>(o.width, o.experts)));
    add_block(register_module("head", std::make_shared<Outer>(o.width, o.outputs)));
    finish();
  }
  std::vector<std::string> input_names() const override { return {"wave"}; }
};

const Fields<NetOptions>& net_fields() {
  static const auto table =
      Fields<NetOptions>("model", "A residual MLP over the points of a wave.")
          .with("name", "wave_net")
          .add("width", &NetOptions::width, "Size of the hidden values.", {.min = 1, .max = 1e6})
          .add("depth", &NetOptions::depth, "Number of hidden blocks.", {.min = 0, .max = 1e4})
          .add("experts", &NetOptions::experts, "Number of experts in the mixture after them.", {.min = 1, .max = 1e4});
  return table;
}

class WaveNetKind : public nn::ModelKindOf<NetOptions> {
 public:
  WaveNetKind() : ModelKindOf(net_fields()) {}
  nn::Policy policy(const void*) const override {
    return {.tensor = {{"hidden*.up", nn::role::column_parallel},
                       {"hidden*.down", nn::role::row_parallel},
                       {"mixed.mixture", "experts"}}};
  }
  std::string default_task(const nn::DataSpec&) const override { return "robust_regression"; }

 protected:
  void resolve_for(NetOptions& options, const nn::DataSpec& spec) const override {
    options.points = spec.required_input("wave", "model \"wave_net\"").shape.at(0);
    options.outputs = spec.classes;
  }
  std::unique_ptr<nn::Model> make_model(const NetOptions& options) const override {
    return std::make_unique<WaveNet>(options);
  }
};

// --- [train] task = "robust_regression": Huber's loss (1964), and the share of predictions that are close.

struct RobustOptions {
  double delta = 0.5, close = 0.1;
};

class RobustRegression : public trireme::Task {
 public:
  RobustRegression(const RobustOptions& options, const nn::DataSpec& spec) : options_(options) {
    const auto* labels = spec.target("labels");
    if (labels == nullptr || labels->dtype == at::kLong || labels->shape.size() != 1)
      throw trireme::ConfigError("train.task: \"robust_regression\" needs a list of numbers as labels");
    outputs_ = labels->shape[0];
  }
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch& batch, const LossOptions&) const override {
    return at::huber_loss(outputs[0], batch.targets["labels"], at::Reduction::Sum, options_.delta);
  }
  std::vector<trireme::Metric> metrics() const override { return {{.name = "close", .label = "close"}}; }
  std::vector<trireme::MetricSums> measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    const auto close = (outputs[0] - batch.targets["labels"]).abs().lt(options_.close).to(at::kDouble);
    return {{close.sum(), close.new_full({}, static_cast<double>(close.numel()))}};
  }
  std::int64_t outputs() const override { return outputs_; }

 private:
  RobustOptions options_;
  std::int64_t outputs_;
};

trireme::TaskKind robust_regression() {
  static const auto fields =
      Fields<RobustOptions>("train", "Numbers for each sample; Huber's loss.")
          .with("task", "robust_regression")
          .add("delta", &RobustOptions::delta, "Errors above this count linearly.", {.above = 0})
          .add("close", &RobustOptions::close, "The metric \"close\" counts errors below this.", {.above = 0});
  return {{fields, RobustOptions{}, [](const RobustOptions& options, const nn::DataSpec& spec) {
             return std::make_shared<const RobustRegression>(options, spec);
           }}};
}

// --- [optimizer] name = "rmsprop" (Tieleman and Hinton, 2012). State and skipped steps are SlotwiseOptimizer's affair.

struct RmsPropOptions {
  double alpha = 0.99, eps = 1e-8;
};

class RmsProp : public optim::SlotwiseOptimizer {
 public:
  RmsProp(const RmsPropOptions& options, std::vector<optim::ParamGroup> groups)
      : SlotwiseOptimizer(std::move(groups), {"square_avg"}), options_(options) {}
  std::string describe() const override { return "RMSprop"; }

 protected:
  void update(at::Tensor& value, const at::Tensor& grad, std::vector<at::Tensor>& state, double lr,
              double weight_decay) const override {
    value.mul_(1 - lr * weight_decay);
    state[0].mul_(options_.alpha).addcmul_(grad, grad, 1 - options_.alpha);
    value.addcdiv_(grad, state[0].sqrt().add_(options_.eps), -lr);
  }

 private:
  RmsPropOptions options_;
};

optim::OptimizerFactory rmsprop() {
  static const auto fields =
      Fields<RmsPropOptions>("optimizer", "Divides by the root of a running mean of squared gradients.")
          .with("name", "rmsprop")
          .add("alpha", &RmsPropOptions::alpha, "Decay rate of the running mean.", {.min = 0, .below = 1})
          .add("eps", &RmsPropOptions::eps, "Added to the denominator.", {.min = 0});
  return {fields, RmsPropOptions{},
          [](const RmsPropOptions& own, const optim::OptimizerOptions&, std::vector<optim::ParamGroup> groups) {
            return std::make_unique<RmsProp>(own, std::move(groups));
          }};
}

// --- [schedule] name = "inverse_sqrt": falls with the root of the step (Vaswani et al., 2017).

optim::CurveFactory inverse_sqrt() {
  static const auto fields =
      Fields<trireme::NoOptions>("schedule", "Falls with the root of the step.").with("name", "inverse_sqrt");
  return {fields, trireme::NoOptions{}, [](const trireme::NoOptions&, const optim::CurveRange& range) -> optim::Curve {
            return [from = std::max<std::int64_t>(range.warmup, 1)](std::int64_t step) {
              return std::sqrt(static_cast<double>(from) / static_cast<double>(std::max(step, from)));
            };
          }};
}

// --- [parallel] schedule = "breadth_first": every microbatch passes through a rank's first chunk before its next one
// (Lamy-Poirier, 2022). The gradients of a chunk are then complete early, and their reduction has long to overlap.

pipeline::Schedule breadth_first(int ranks, int microbatches, int chunks) {
  std::vector<pipeline::Action> actions;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (int i = 0; i < microbatches; ++i) actions.push_back({pipeline::Op::forward, chunk, i});
  for (int chunk = chunks - 1; chunk >= 0; --chunk)
    for (int i = 0; i < microbatches; ++i) actions.push_back({pipeline::Op::backward, chunk, i});
  return {.name = "breadth_first",
          .ranks = ranks,
          .chunks = chunks,
          .microbatches = microbatches,
          .actions = std::vector(static_cast<std::size_t>(ranks), actions)};
}

// --- A callback, which joins every run: it prints how fast the fastest step was.

class FastestStep : public trireme::train::RunCallback {
 public:
  void on_log(trireme::train::RunContext&, const trireme::train::StepLog& step) override {
    seconds_ = std::min(seconds_, step.seconds);
  }
  void on_finish(trireme::train::RunContext& run, const trireme::train::RunResult&) override {
    run.say(fmt::format("fastest   a step in {:.1f} ms", 1e3 * seconds_));
  }

 private:
  double seconds_ = std::numeric_limits<double>::infinity();
};

// --- A switch, which the tuner tries: arithmetic with denormal numbers is slow on some CPUs.

std::optional<trireme::tune::Switch> denormals(const trireme::tune::SwitchInputs& inputs) {
  if (!inputs.device.is_cpu()) return std::nullopt;
  return trireme::tune::Switch{.name = "denormals",
                               .choices = {{"kept", [] { at::globalContext().setFlushDenormal(false); }},
                                           {"zero", [] { at::globalContext().setFlushDenormal(true); }}}};
}

void add(trireme::train::Kinds& kinds) {
  kinds.models.add("wave_net", std::make_shared<WaveNetKind>());
  kinds.roles.tensor.add("experts", experts());
  kinds.datasets.add(waves());
  kinds.tasks.add(robust_regression());
  kinds.optimizers.add(rmsprop());
  kinds.lr_schedules.add(inverse_sqrt());
  kinds.pipeline_schedules.add("breadth_first", {.make = breadth_first, .chunks = 2, .more_chunks = true});
  kinds.switches.add("denormals", denormals);
  kinds.callbacks.emplace_back([] { return std::make_shared<FastestStep>(); });
}

}  // namespace

TRIREME_EXTENSION(add)
