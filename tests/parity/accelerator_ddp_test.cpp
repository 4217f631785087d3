// A loop by hand with ddp(), DistributedSampler and torch::optim equals one process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/accelerate/ddp.h"
#include "core/base/error.h"
#include "core/data/distributed_sampler.h"
#include "core/nn/adapt.h"
#include "models/registry.h"
#include "tests/parity/accelerator_net.h"

namespace trireme::tests {
namespace {

/// The samples as a batch on this rank's device.
data::Sample batch_of(data::Dataset& data, const std::vector<std::int64_t>& indices) {
  std::vector<data::Sample> samples;
  for (const auto index : indices) samples.push_back(*data.get(index, /*epoch=*/0, /*augment=*/true));
  auto batch = data.collate(std::move(samples), indices);
  for (auto* tensors : {&batch.inputs, &batch.targets})
    for (auto& [name, tensor] : *tensors) tensor = tensor.to(world().device());
  return batch;
}

struct DdpCase {
  const char* name;
  DdpOptions options{};
  bool accumulate = false;  ///< each batch in two passes, the first without a reduction
  bool zeros = false;       ///< zero_grad() fills with zeros instead of freeing
};

class Ddp : public testing::TestWithParam<DdpCase> {};

TEST_P(Ddp, EqualsOneProcess) {
  const auto c = user_case();
  const auto& how = GetParam();
  const auto data = make_data(c);
  UserNet net(c);
  if (world().rank() > 0) {  // rank 0's values count
    const at::NoGradGuard no_grad;
    for (auto& p : net->parameters()) p.add_(1);
  }
  auto model = ddp(net, world().group(), how.options);
  auto optimizer = user_adamw(net);
  const auto ranks = world().size();
  DistributedSampler sampler(data->size(), ranks, world().rank(), {.seed = kSeed, .even = true});
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; step < c.steps; ++epoch) {
    sampler.set_epoch(epoch);
    const auto local = c.global_batch / ranks;
    for (std::int64_t begin = 0; begin < sampler.size(); begin += local, ++step) {
      const auto end = std::min(begin + local, sampler.size());
      const std::vector<std::int64_t> indices(sampler.begin() + begin, sampler.begin() + end);
      const auto global = std::min(c.global_batch, data->size() - begin * ranks);
      // Samples that `even` repeats stand at the end of the last batch, and have no weight here.
      const auto counted = std::min(end, (data->size() - world().rank() + ranks - 1) / ranks) - begin;
      const auto batch = batch_of(*data, indices);
      const auto loss_of = [&](std::int64_t from, std::int64_t to) {
        const auto logits = model(batch.inputs.front().slice(0, from, to));
        const auto each =
            at::cross_entropy_loss(logits, batch.targets["labels"].slice(0, from, to), {}, at::Reduction::None);
        const auto weighed = each.slice(0, 0, std::max<std::int64_t>(0, counted - from)).sum() + 0 * each.sum();
        return weighed * ranks / global;
      };
      const auto size = end - begin, half = how.accumulate ? size / 2 : 0;
      if (half > 0) {
        const auto guard = model.no_sync();
        loss_of(0, half).backward();
      }
      loss_of(half, size).backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), c.max_norm);
      for (auto& group : optimizer.param_groups())
        group.options().set_lr(1e-2 * (1 - static_cast<double>(step) / static_cast<double>(c.steps)));
      optimizer.step();
      optimizer.zero_grad(/*set_to_none=*/!how.zeros);
    }
  }
  Named weights;
  for (const auto& item : net->named_parameters()) weights[item.key()] = item.value().detach().cpu();
  const auto [worst, name] = distance(weights, reference(c).weights, kBound);
  EXPECT_LE(worst, 1) << "weight " << name;
}

INSTANTIATE_TEST_SUITE_P(Options, Ddp,
                         testing::Values(DdpCase{"plain"}, DdpCase{.name = "accumulate", .accumulate = true},
                                         DdpCase{.name = "zeros", .zeros = true},
                                         DdpCase{"unused", {.reducer = {.find_unused_parameters = true}}},
                                         DdpCase{"fixed", {.reducer = {.static_graph = true}}}),
                         [](const auto& value) { return value.param.name; });

// Any type of forward(): the tensors in its result are found.
struct TwoOutputs : torch::nn::Module {
  TwoOutputs() : linear(register_module("linear", torch::nn::Linear(2, 2))) { to(world().device()); }
  std::tuple<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x, double scale) {
    return {linear(x), {linear(x * scale)}};
  }
  torch::nn::Linear linear;
};

TEST(DdpRules, AveragesTheGradientsOfAnyForward) {
  const auto module = std::make_shared<TwoOutputs>();
  auto model = ddp(module, world().group());
  const auto x = at::full({3, 2}, world().rank() + 1.0, on());
  const auto [first, rest] = model(x, 2.0);
  (first.sum() + rest.front().sum()).backward();
  const auto mean = (world().size() + 1) / 2.0;
  EXPECT_NEAR(module->linear->weight.grad().mean().item<double>(), 9 * mean, 1e-5);
  module->eval();
  EXPECT_TRUE(std::get<0>(model(x, 1.0)).defined());
}

TEST(DdpRules, AModelWithoutMemoryIsRefused) {
  const Case c{.name = "meta"};
  EXPECT_THROW((void)ddp(make_model(c), world().group()), UsageError);
}

}  // namespace
}  // namespace trireme::tests
