// The optimizers against torch.optim's numbers (tests/golden/optim.json), skipped steps, state.
#include "core/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/optim/fused_adamw.h"
#include "core/optim/optimizers.h"

namespace trireme::optim {
namespace {

using nlohmann::json;

const json& golden() {
  static const json data = json::parse(std::ifstream(TRIREME_SOURCE_DIR "/tests/golden/optim.json"));
  return data;
}

at::Tensor tensor_of(const json& values, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble).to(dtype).view(shape).clone();
}

OptimizerOptions options_of(const std::string& name) {
  if (name == "lion") return {.weight_decay = 0.1, .method = lion()};
  if (name == "lamb") return {.weight_decay = 0.1, .method = lamb()};
  if (name == "lars") return {.weight_decay = 0.1, .method = lars({.trust_coefficient = 0.1, .nesterov = true})};
  const auto& given = golden()["optimizers"][name]["options"];
  HybridAdamOptions adam{.adamw = name != "adam_l2"};
  if (given.contains("betas")) adam.betas = given["betas"].get<std::vector<double>>();
  adam.eps = given.value("eps", adam.eps);
  const SgdOptions descent{.momentum = given.value("momentum", 0.0),
                           .nesterov = given.value("nesterov", false),
                           .dampening = given.value("dampening", 0.0)};
  return {.weight_decay = given.value("weight_decay", 0.0),
          .method = name.starts_with("adam") ? hybrid_adam(adam) : sgd(descent)};
}

std::vector<NamedTensor> start_tensors(at::ScalarType dtype) {
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < golden()["shapes"].size(); ++i) {
    const auto shape = golden()["shapes"][i].get<std::vector<std::int64_t>>();
    out.push_back({fmt::format("layer.{}.weight", i), tensor_of(golden()["start"][i], shape, dtype).requires_grad_()});
  }
  return out;
}

void set_gradients(Optimizer& optimizer, std::size_t step) {
  auto& slots = optimizer.groups().at(0).slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i].grad = tensor_of(golden()["grads"][step][i], slots[i].value.sizes(), slots[i].value.scalar_type());
    for (const auto& none : golden()["no_grad"])
      if (none[0] == step && none[1] == i) slots[i].grad = at::Tensor();
  }
}

/// The largest difference relative to the expected value (to 1e-3 for smaller ones, where cancellation dominates).
double difference(const at::Tensor& got, const json& expected) {
  const auto values = got.detach().to(at::kDouble).contiguous();
  EXPECT_EQ(static_cast<std::size_t>(values.numel()), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double want = expected[i].get<double>(), have = values.const_data_ptr<double>()[i];
    const double d = std::abs(have - want) / std::max(std::abs(want), 1e-3);
    worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(worst, d);
  }
  return worst;
}

class AgainstTorch : public ::testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {};

TEST_P(AgainstTorch, EveryStepAndTheState) {
  const auto& [name, dtype] = GetParam();
  const auto& expected = golden()["optimizers"][name][dtype == at::kDouble ? "float64" : "float32"];
  const double bound = dtype == at::kDouble ? 1e-14 : 2e-6;
  const auto options = options_of(name);
  auto optimizer = make(options, make_groups(options, start_tensors(dtype)));
  EXPECT_EQ(optimizer->state_bytes(), 0);
  double worst = 0;
  for (std::size_t step = 0; step < golden()["lr"].size(); ++step) {
    set_gradients(*optimizer, step);
    optimizer->step(golden()["lr"][step].get<double>());
    const auto& slots = optimizer->groups()[0].slots;
    for (std::size_t i = 0; i < slots.size(); ++i)
      worst = std::max(worst, difference(slots[i].value, expected["values"][step][i]));
    ASSERT_LE(worst, bound) << "step " << step;
  }
  std::int64_t bytes = 0;
  for (const auto& [parameter, key, tensor] : optimizer->state()) {
    const auto index = static_cast<std::size_t>(parameter[6] - '0');
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    if (!expected["state"][index].contains(key)) {
      EXPECT_EQ(key, "step") << "only sgd's step has no counterpart in torch";
      continue;
    }
    EXPECT_LE(difference(tensor, expected["state"][index][key]), bound) << parameter << " " << key;
  }
  EXPECT_EQ(optimizer->state_bytes(), bytes);
  RecordProperty("worst", fmt::format("{:.2e}", worst));
}

INSTANTIATE_TEST_SUITE_P(All, AgainstTorch,
                         ::testing::Combine(::testing::Values("adamw", "adamw_plain", "adam_l2", "sgd", "sgd_momentum",
                                                              "sgd_nesterov", "sgd_dampening"),
                                            ::testing::Values(at::kDouble, at::kFloat)),
                         [](const auto& row) {
                           return fmt::format("{}_{}", std::get<0>(row.param),
                                              std::get<1>(row.param) == at::kDouble ? "fp64" : "fp32");
                         });

// A skipped step leaves no trace: with one before the first and one in the middle, the run equals one without them.
class Skipped : public ::testing::TestWithParam<std::string> {};

TEST_P(Skipped, LeavesNoTrace) {
  const auto options = options_of(GetParam());
  auto plain = make(options, make_groups(options, start_tensors(at::kFloat)));
  auto skipping = make(options, make_groups(options, start_tensors(at::kFloat)));
  const auto skip = [&](float flag) {
    for (auto& slot : skipping->groups()[0].slots)
      slot.grad = at::full_like(slot.value.detach(), std::numeric_limits<float>::infinity());
    skipping->step(0.1, at::full({}, flag, at::kFloat));
  };
  for (std::size_t step = 0; step < 4; ++step) {
    if (step == 0) skip(1);
    if (step == 2) skip(3);  // a sum over ranks counts as well
    set_gradients(*plain, step);
    set_gradients(*skipping, step);
    plain->step(0.1);
    skipping->step(0.1, at::zeros({}, at::kFloat));
  }
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(at::equal(plain->groups()[0].slots[i].value, skipping->groups()[0].slots[i].value)) << i;
  const auto a = plain->state(), b = skipping->state();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].key;
}

// Slot.skip leaves only that slot unchanged, also without found_inf, as if it had no gradient in that step.
TEST_P(Skipped, OneSlotAlone) {
  const auto options = options_of(GetParam());
  for (const bool with_found_inf : {false, true}) {
    auto plain = make(options, make_groups(options, start_tensors(at::kFloat)));
    auto skipping = make(options, make_groups(options, start_tensors(at::kFloat)));
    for (std::size_t step = 0; step < 4; ++step) {
      const bool skips = step == 0 || step == 2;
      set_gradients(*plain, step);
      set_gradients(*skipping, step);
      auto& slot = skipping->groups()[0].slots[1];
      slot.skip = at::full({}, skips ? 1.F : 0.F, at::kFloat);
      if (skips) {
        plain->groups()[0].slots[1].grad = at::Tensor();
        slot.grad = at::full_like(slot.value.detach(), std::numeric_limits<float>::infinity());
      }
      plain->step(0.1);
      skipping->step(0.1, with_found_inf ? at::zeros({}, at::kFloat) : at::Tensor());
    }
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(plain->groups()[0].slots[i].value, skipping->groups()[0].slots[i].value)) << i;
    const auto a = plain->state(), b = skipping->state();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].key;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Skipped,
                         ::testing::Values("adamw", "adam_l2", "sgd", "sgd_momentum", "sgd_nesterov", "sgd_dampening",
                                           "lion", "lamb", "lars"));

// Three steps, a copy of the state into a new optimizer and three more steps equal six steps bit for bit.
TEST(OptimizerState, RoundTripContinuesBitForBit) {
  for (const char* name : {"adamw", "sgd_nesterov", "sgd_dampening", "lion", "lamb", "lars"}) {
    const auto options = options_of(name);
    auto whole = make(options, make_groups(options, start_tensors(at::kFloat)));
    auto first = make(options, make_groups(options, start_tensors(at::kFloat)));
    for (std::size_t step = 0; step < 6; ++step) {
      set_gradients(*whole, step);
      whole->step(0.05);
    }
    for (std::size_t step = 0; step < 3; ++step) {
      set_gradients(*first, step);
      first->step(0.05);
    }
    auto second = make(options, make_groups(options, start_tensors(at::kFloat)));
    auto from = first->state(), to = second->state();
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].parameter + from[i].key, to[i].parameter + to[i].key);
      to[i].tensor.copy_(from[i].tensor);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const at::NoGradGuard no_grad;
      second->groups()[0].slots[i].value.copy_(first->groups()[0].slots[i].value);
    }
    for (std::size_t step = 3; step < 6; ++step) {
      set_gradients(*second, step);
      second->step(0.05);
    }
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(whole->groups()[0].slots[i].value, second->groups()[0].slots[i].value)) << name << i;
  }
}

// The kernels walk raw memory: a transposed or differently typed gradient must land on its own elements.
TEST(Optimizer, GradientOfAnotherLayoutOrDtype) {
  for (const char* name : {"adamw", "sgd_momentum", "sgd_dampening", "lion", "lamb"}) {
    const auto options = options_of(name);
    auto plain = make(options, make_groups(options, start_tensors(at::kFloat)));
    auto odd = make(options, make_groups(options, start_tensors(at::kFloat)));
    set_gradients(*plain, 0);
    set_gradients(*odd, 0);
    auto& slots = odd->groups()[0].slots;
    slots[0].grad = slots[0].grad.t().contiguous().t();
    ASSERT_FALSE(slots[0].grad.is_contiguous());
    slots[1].grad = slots[1].grad.to(at::kDouble);
    plain->step(0.1);
    odd->step(0.1);
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(plain->groups()[0].slots[i].value, slots[i].value)) << name << i;
  }
}

// Mixed dtypes, an empty slice, lr_scale and groups with different decay in one optimizer; moments keep the dtype.
TEST(Optimizer, GroupsOfMixedKinds) {
  OptimizerOptions options;
  ParamGroup a{"decay", 0.5, 1, {}}, b{"no_decay", 0, 0.5, {}};
  a.slots.push_back({"w64", at::ones({3}, at::kDouble), at::zeros({3}, at::kDouble)});
  a.slots.push_back({"w16", at::ones({3}, at::kBFloat16), at::zeros({3}, at::kBFloat16)});
  a.slots.push_back({"none", at::zeros({0}, at::kFloat), at::zeros({0}, at::kFloat)});
  b.slots.push_back({"bias", at::zeros({3}, at::kFloat), at::ones({3}, at::kFloat)});
  auto optimizer = make(options, {a, b});
  optimizer->step(0.25);
  EXPECT_DOUBLE_EQ(optimizer->groups()[0].slots[0].value[1].item<double>(), 1 - 0.25 * 0.5);
  EXPECT_EQ(optimizer->groups()[0].slots[1].value[1].item<float>(), 0.875f);
  EXPECT_NEAR(optimizer->groups()[1].slots[0].value[2].item<float>(), -0.125f, 1e-6);
  for (const auto& [parameter, key, tensor] : optimizer->state())
    if (key == "exp_avg") {
      EXPECT_EQ(tensor.scalar_type(), parameter == "w64"   ? at::kDouble
                                      : parameter == "w16" ? at::kBFloat16
                                                           : at::kFloat);
    }
}

TEST(Optimizer, CudaEqualsCpu) {
  if (::access("/dev/nvidiactl", F_OK) != 0) GTEST_SKIP() << "no GPU here: the CUDA kernels did not run";
  ASSERT_NE(::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror();
  for (const char* name : {"adamw", "adam_l2", "sgd_nesterov", "sgd_dampening", "lion", "lamb", "lars"}) {
    const auto options = options_of(name);
    auto cpu = make(options, make_groups(options, start_tensors(at::kDouble)));
    auto tensors = start_tensors(at::kDouble);
    for (auto& tensor : tensors) tensor.value = tensor.value.detach().to(at::kCUDA);
    auto gpu = make(options, make_groups(options, tensors));
    for (std::size_t step = 0; step < 4; ++step) {
      set_gradients(*cpu, step);
      for (std::size_t i = 0; i < 2; ++i) {
        const auto& grad = cpu->groups()[0].slots[i].grad;
        gpu->groups()[0].slots[i].grad = grad.defined() ? grad.to(at::kCUDA) : grad;
      }
      const auto flag = at::full({}, step == 1 ? 1.f : 0.f, at::kFloat);
      cpu->step(0.1, flag);
      gpu->step(0.1, flag.to(at::kCUDA));
    }
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_LE(cpu->groups()[0].slots[i].value.sub(gpu->groups()[0].slots[i].value.cpu()).abs().max().item<double>(),
                1e-13)
          << name;
  }
}

TEST(FusedAdamW, UpdatesAsHybridAdamBitForBit) {
  const auto make = [] {
    std::vector<at::Tensor> all;
    for (auto& start : start_tensors(at::kFloat)) all.push_back(start.value);
    return all;
  };
  const auto values = make(), expected = make();
  FusedAdamW fused(values, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  OptimizerOptions options{.lr = 1e-2, .weight_decay = 0.1};
  std::vector<NamedTensor> named;
  for (std::size_t i = 0; i < expected.size(); ++i) named.push_back({std::to_string(i), expected[i]});
  const auto hybrid = optim::make(options, make_groups(options, named));
  for (int step = 0; step < 4; ++step) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      // The first tensor has no gradient in the first step, so its count of steps is another one.
      const bool has_grad = i > 0 || step > 0;
      const auto grad =
          has_grad ? at::full_like(values[i].detach(), 0.1 * static_cast<double>(step + 1)) * values[i].detach()
                   : at::Tensor();
      values[i].mutable_grad() = grad;
      hybrid->groups()[0].slots[i].grad = has_grad ? grad.clone() : at::Tensor();
    }
    fused.step();
    hybrid->step(1e-2);
  }
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(at::equal(values[i], expected[i])) << i;
  FusedAdamW with_amsgrad(values, torch::optim::AdamWOptions(1e-2).amsgrad(true));
  EXPECT_THROW(with_amsgrad.step(), UsageError);
}

}  // namespace
}  // namespace trireme::optim
