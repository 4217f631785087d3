#include "tests/parity/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/optim/lr_schedule.h"
#include "core/optim/optimizers.h"

namespace trireme::tests {
namespace {

bool any_matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const auto& p) { return text::matches(name, p); });
}

// AdamW and SGD with momentum, by their papers' formulas.
struct TextbookOptimizer {
  const Case& c;
  double weight_decay = 0.1;
  optim::HybridAdamOptions adam{};
  double momentum = 0.9;
  Named first{}, second{};
  std::map<std::string, int> steps{};  ///< per parameter, the steps in which it had a gradient

  void step(std::vector<nn::Parameter>& parameters, const Named& gradients, double lr) {
    for (auto& p : parameters) {
      if (gradients.count(p.name) == 0) continue;
      const int step_number = ++steps[p.name];
      auto value = p.value.detach();
      auto grad = gradients.at(p.name).clone();
      const double decay = any_matches(p.name, c.no_decay) ? 0 : weight_decay;
      auto& m = first[p.name];
      if (!m.defined()) m = at::zeros_like(value);
      if (c.adamw) {
        auto& v = second[p.name];
        if (!v.defined()) v = at::zeros_like(value);
        const double b1 = adam.betas[0], b2 = adam.betas[1];
        value.mul_(1 - lr * decay);
        m = b1 * m + (1 - b1) * grad;
        v = b2 * v + (1 - b2) * grad * grad;
        const auto corrected = m / (1 - std::pow(b1, step_number));
        value.sub_(lr * corrected / ((v / (1 - std::pow(b2, step_number))).sqrt() + adam.eps));
      } else {
        grad = grad + decay * value;
        m = step_number == 1 ? grad : momentum * m + grad;
        value.sub_(lr * m);
      }
    }
  }
};

}  // namespace

Named start(const Case& c) {
  const auto model = make_model(c);
  Named values;
  for (const auto& d : nn::declarations(*model))
    values[d.name] = shard::draw(shard::Init::normal(0, 0.2), 77, d.placement, at::kDouble, at::kCPU);
  return values;
}

std::int64_t uneven_micro_batch(std::int64_t global_batch, std::int64_t inner) {
  const auto data_ranks = detect_launch().size / inner;
  return std::clamp<std::int64_t>((global_batch + data_ranks - 1) / data_ranks - 1, 1, 3);
}

static std::int64_t micro_batch_of(const Case& c) {
  return c.micro_batch == kUneven ? uneven_micro_batch(c.global_batch, c.tp * c.pp) : c.micro_batch;
}

BoostOptions make_options(const Case& c) {
  BoostOptions options;
  options.seed = kSeed;
  auto& train = options.train;
  train.epochs = c.steps;
  train.max_steps = c.steps;
  train.global_batch = c.global_batch;
  train.micro_batch = std::min(micro_batch_of(c), c.global_batch);
  train.precision = c.precision;
  if (c.precision == "fp16") {
    train.loss_scale.initial_scale = c.initial_scale;
    train.loss_scale.max_scale = std::max(train.loss_scale.max_scale, c.initial_scale);
  }
  train.max_norm = c.max_norm;
  train.recompute = c.recompute;
  const auto keys = config::parse_text("[train]\n" + c.train, c.name);
  config::read_into(keys.table("train"), train_fields(), &train);
  auto& optimizer = options.optimizer;
  optimizer.method = c.adamw ? optim::hybrid_adam() : optim::sgd({.momentum = 0.9});
  optimizer.lr = c.adamw ? 1e-2 : 5e-2;
  optimizer.weight_decay = 0.1;
  optimizer.freeze = c.freeze;
  optimizer.no_decay = c.no_decay;
  options.lr_schedule.curve = optim::linear();
  return options;
}

data::LoaderOptions make_loader(const Case& c) {
  data::LoaderOptions loader;
  loader.global_batch = c.global_batch;
  loader.micro_batch = micro_batch_of(c);
  loader.seed = kSeed;
  loader.shuffle = true;
  return loader;
}

std::string numbers_of(const Case& c) {
  const auto lora = c.lora.value_or(nn::LoraOptions{.rank = 0});
  return fmt::format("{} {}",
                     fmt::join({c.samples, c.global_batch, c.steps, c.hidden, c.mlp, c.layers, c.heads, c.pixels,
                                c.patch, c.width, lora.rank, static_cast<std::int64_t>(c.vocabulary)},
                               " "),
                     fmt::join({c.dropout, c.max_norm, c.smoothing, lora.alpha, lora.dropout}, " ")) +
         fmt::format(" {:d}{:d}{:d}{:d}{:d}{:d}{:d}{:d} {};{};{};{};{};{}", c.adamw, c.unused_block, c.rare, c.balance,
                     c.adapted, c.in_place, c.twice, c.everywhere, c.train, fmt::join(c.freeze, ","),
                     fmt::join(c.no_decay, ","), fmt::join(lora.target, ","),
                     fmt::join(lora.train.value_or(std::vector<std::string>{"-"}), ","), fmt::join(lora.heads, ","));
}

namespace {

Trace compute_reference(const Case& c) {
  const memory::OfHost not_the_run;
  const auto model = make_model(c);
  nn::materialize(*model, kSeed, at::kDouble, at::kCPU);
  auto parameters = nn::parameters(*model);
  const auto values = start(c);
  for (auto& p : parameters) p.value.detach().copy_(values.at(p.name));
  const auto data = make_data(c);
  const auto options = make_options(c);
  TextbookOptimizer optimizer{.c = c};
  Trace trace;
  std::vector<std::int64_t> order;
  for (std::int64_t step = 0; step < c.steps; ++step) {
    // The sampler orders an epoch, which the loader's own tests check. Here one rank reads the whole batch.
    const auto steps_an_epoch = (c.samples + c.global_batch - 1) / c.global_batch;
    auto loader_options = make_loader(c);
    loader_options.micro_batch = c.global_batch;
    loader_options.dtype = at::kDouble;
    data::Loader loader(data, loader_options);
    loader.start_epoch(step / steps_an_epoch, step % steps_an_epoch);
    const auto batch = loader.next()->micro.front();
    const nn::Context context{.training = true, .seed = kSeed, .step = step, .sample_ids = batch.sample_ids};
    model->train(true);
    const auto logits = model->forward(model->first_inputs(batch.inputs), context).front();
    // Mean cross-entropy by hand.
    const auto log_p = logits.log_softmax(-1);
    const auto loss = -((1 - c.smoothing) * log_p.gather(1, batch.targets["labels"].unsqueeze(1)).mean() +
                        c.smoothing * log_p.mean());
    for (auto& p : parameters) p.value.mutable_grad() = at::Tensor();
    (c.balance ? loss + last_term(*model) / batch.size() : loss).backward();
    trace.losses.push_back(loss.item<double>());
    Named gradients;
    double square = 0;
    for (const auto& p : parameters)
      if (p.value.grad().defined() && !any_matches(p.name, c.freeze)) {
        gradients[p.name] = p.value.grad().clone();
        square += p.value.grad().pow(2).sum().item<double>();
      }
    trace.gradients.push_back(gradients);
    trace.norms.push_back(std::sqrt(square));
    if (c.max_norm > 0)
      for (auto& [name, grad] : gradients) grad = grad * std::min(1.0, c.max_norm / (std::sqrt(square) + 1e-6));
    const double lr = options.optimizer.lr * (1 - static_cast<double>(step) / static_cast<double>(c.steps));
    optimizer.step(parameters, gradients, lr);
  }
  for (const auto& p : parameters) trace.weights[p.name] = p.value.detach().clone();
  return trace;
}

}  // namespace

const Trace& reference(const Case& c) {
  static std::map<std::string, Trace> known;
  const auto numbers = numbers_of(c);
  const auto found = known.find(numbers);
  return found != known.end() ? found->second : known.emplace(numbers, compute_reference(c)).first->second;
}

std::pair<double, std::string> distance(const Named& got, const Named& expected, double bound) {
  const auto norm = [](const at::Tensor& t) { return t.norm().item<double>(); };
  double global = 0;
  for (const auto& [name, tensor] : expected) global += std::pow(norm(tensor), 2);
  global = std::sqrt(global);
  std::pair<double, std::string> worst{0, ""};
  for (const auto& [name, tensor] : expected) {
    if (got.count(name) == 0) return {INFINITY, name + " is missing"};
    const double quotient = norm(got.at(name) - tensor) / (bound * std::max(norm(tensor), 1e-6 * global));
    if (std::isnan(quotient)) return {INFINITY, name + " is not a number"};
    if (quotient > worst.first) worst = {quotient, name};
  }
  if (got.size() != expected.size()) return {INFINITY, "another number of tensors"};
  return worst;
}

}  // namespace trireme::tests
