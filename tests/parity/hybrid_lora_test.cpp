// What adapters cost: gradients, optimizer state and masters of the trained weights alone, in every stage of ZeRO.
#include <gtest/gtest.h>

#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

struct AdapterCost {
  const char *keys, *precision;
  double state;       ///< bytes of optimizer state and masters for each trained element
  double parameters;  ///< bytes of weights for each element
  bool whole;         ///< each rank holds all weights; else its part of them
};
void PrintTo(const AdapterCost& cost, std::ostream* out) { *out << cost.keys << " " << cost.precision; }

class AdapterCosts : public testing::TestWithParam<AdapterCost> {};

TEST_P(AdapterCosts, AreThoseOfTheTrainedWeights) {
  const auto& row = GetParam();
  const Case c{.name = "adapters",
               .samples = 24,
               .hidden = 64,
               .layers = 4,
               .heads = 4,
               .plugin = row.keys,
               .precision = row.precision,
               .plugin_name = "hybrid_parallel",
               .lora = nn::LoraOptions{.rank = 8, .train = std::vector<std::string>{"classifier"}}};
  double trained = 0, all = 0;
  for (const auto& parameter : nn::declarations(*make_model(c))) {
    const auto elements = static_cast<double>(parameter.placement.full_numel());
    all += elements;
    if (parameter.value.requires_grad()) trained += elements;
  }
  ASSERT_LT(trained, 0.25 * all);
  const auto n = static_cast<double>(world().size());
  const auto held = one_step(c);
  const auto expect_about = [](double got, double want, const char* what) {
    EXPECT_NEAR(got, want, 0.05 * want) << what;  // parts are padded
  };
  expect_about(static_cast<double>(held.optimizer), row.state * trained / n, "bytes of state");
  expect_about(static_cast<double>(held.parameters), row.parameters * all / (row.whole ? 1 : n), "bytes of weights");
  if (n == 1) return;
  expect_about(static_cast<double>(held.reduced), trained, "reduced elements");
  // Frozen weights are gathered only where each rank holds a part of them.
  if (row.whole) expect_about(static_cast<double>(held.gathered), trained, "gathered elements");
}

INSTANTIATE_TEST_SUITE_P(Stages, AdapterCosts,
                         testing::Values(AdapterCost{"zero_stage = 1", "fp64", 16, 8, true},
                                         AdapterCost{"zero_stage = 2", "fp64", 16, 8, true},
                                         AdapterCost{"zero_stage = 3", "fp64", 16, 8, false},
                                         AdapterCost{"zero_stage = 1", "bf16", 12, 2, true},
                                         AdapterCost{"zero_stage = 3", "bf16", 12, 2, false}));

// Of replicated weights, too, only the gradients of the trained ones are reduced, and a few numbers at most.
TEST(AdapterReduction, ReducesTheTrainedWeights) {
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  const Case c{.name = "replicated", .plugin_name = "torch_ddp", .lora = adapters()};
  std::uint64_t trained = 0;
  for (const auto& parameter : nn::declarations(*make_model(c)))
    if (parameter.value.requires_grad()) trained += static_cast<std::uint64_t>(parameter.placement.full_numel());
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  run.loader->start_epoch(0);
  const auto batch = run.loader->next();
  const auto before = sent("dp", "all_reduce");
  run.train_step(*batch);
  const auto reduced = sent("dp", "all_reduce") - before;
  EXPECT_GE(reduced, trained);
  EXPECT_LE(reduced, trained + 8);
}

}  // namespace
}  // namespace trireme::tests
