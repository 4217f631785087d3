// optimize() of a program's own step.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "core/base/error.h"
#include "core/tune/optimize.h"

namespace trireme::tune {
namespace {

/// Switches of the test alone: `slow` takes longer in the default and is otherwise the same; `wrong` halves the loss,
/// and is as fast as the other choice of `slow`.
struct Planted {
  bool waits = true, halves = false;
  Switches switches{"switch"};
  Planted() {
    switches.add("slow", [this](const SwitchInputs&) -> std::optional<Switch> {
      return Switch{.name = "slow",
                    .choices = {{"waits", [this] { waits = true; }}, {"does not", [this] { waits = false; }}}};
    });
    switches.add("wrong", [this](const SwitchInputs&) -> std::optional<Switch> {
      return Switch{.name = "wrong",
                    .choices = {{"no", [this] { halves = false; }}, {"yes", [this] { halves = true; }}}};
    });
  }
};

TEST(OptimizeModule, ChoosesTheFastestAndLeavesTheModuleAsItWas) {
  at::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Dropout(0.5), torch::nn::Linear(16, 4));
  const auto x = at::randn({5, 8});
  std::vector<at::Tensor> before;
  for (const auto& parameter : net->parameters()) before.push_back(parameter.detach().clone());
  const auto drawn = at::randn({3});
  at::manual_seed(4);
  const auto expected = at::randn({3});
  at::manual_seed(4);
  Planted planted;
  double seconds = 0;
  const auto loss = [&](const std::vector<at::Tensor>& inputs) {
    seconds += planted.waits && !planted.halves ? 4 : 1;
    return net->forward(inputs[0]).square().mean() * (planted.halves ? 0.5 : 1);
  };
  const auto tuning =
      optimize(*net, {x}, loss, {.budget_s = 1e9, .switches = planted.switches, .clock = [&] { return seconds; }});
  EXPECT_EQ(tuning.chosen, std::vector<std::string>{"slow=does not"}) << tuning.table();
  EXPECT_TRUE(tuning.same_bits);
  ASSERT_EQ(tuning.candidates.size(), 2U);
  const auto& wrong = tuning.candidates[tuning.candidates[0].name == "wrong=yes" ? 0 : 1];
  EXPECT_EQ(wrong.name, "wrong=yes");
  EXPECT_EQ(wrong.numbers, NumberClass::wrong);
  EXPECT_NE(wrong.verdict.find("rejected: block 0"), std::string::npos) << wrong.verdict;
  EXPECT_FALSE(planted.waits);
  EXPECT_FALSE(planted.halves);
  EXPECT_TRUE(at::randn({3}).equal(expected));
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(net->parameters()[i].equal(before[i]));
    EXPECT_FALSE(net->parameters()[i].grad().defined());
    EXPECT_EQ(net->parameters()[i].scalar_type(), at::kFloat);
  }
}

TEST(OptimizeModule, RefusesUnknownCandidatesAndModulesWithoutParameters) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2));
  const auto loss = [&](const std::vector<at::Tensor>& inputs) { return net->forward(inputs[0]).sum(); };
  EXPECT_THROW(optimize(*net, {at::randn({1, 2})}, loss, {.candidates = {"nothing"}}), ConfigError);
  torch::nn::Sequential empty(torch::nn::Dropout(0.1));
  EXPECT_THROW(optimize(*empty, {at::randn({1, 2})}, loss, {}), UsageError);
}

}  // namespace
}  // namespace trireme::tune
