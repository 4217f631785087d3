// Contract C1 for data parallelism: every case on the ranks of this program against one process, in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/train/evaluate.h"
#include "tasks/tasks.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

class DataParallel : public testing::TestWithParam<Case> {};

TEST_P(DataParallel, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

// 11 samples in batches of 8: the second is ragged, with 3 samples, fewer than four ranks.
INSTANTIATE_TEST_SUITE_P(
    Ladder, DataParallel,
    testing::Values(
        Case{.name = "plain"}, Case{.name = "sgd", .adamw = false}, Case{.name = "accumulate", .micro_batch = kUneven},
        Case{.name = "accumulate_sgd_clip", .micro_batch = kUneven, .adamw = false, .max_norm = 0.5},
        Case{.name = "clip", .max_norm = 0.5}, Case{.name = "dropout", .dropout = 0.3},
        Case{.name = "dropout_accumulate_recompute", .micro_batch = kUneven, .dropout = 0.3, .recompute = true},
        Case{.name = "recompute", .recompute = true},
        Case{.name = "everything",
             .micro_batch = kUneven,
             .adamw = false,
             .dropout = 0.2,
             .max_norm = 0.3,
             .recompute = true},
        Case{.name = "two_epochs", .samples = 11, .steps = 4, .max_norm = 0.5},
        Case{.name = "three_microbatches",
             .samples = 27,
             .global_batch = 12,
             .micro_batch = 2,
             .steps = 3,
             .dropout = 0.1},
        Case{.name = "lora", .micro_batch = 2, .max_norm = 0.5, .lora = adapters()},
        Case{.name = "freeze_no_decay", .freeze = {"*layer.0.*", "cls_token"}, .no_decay = {"*bias", "layernorm"}},
        Case{.name = "copied", .micro_batch = kUneven, .max_norm = 0.5, .plugin = "gradient_as_bucket_view = false"},
        Case{.name = "several_buckets", .hidden = 60, .layers = 8, .plugin = "bucket_cap_mb = 1"},
        Case{.name = "several_buckets_clip",
             .micro_batch = kUneven,
             .max_norm = 0.5,
             .recompute = true,
             .hidden = 60,
             .layers = 8,
             .plugin = "bucket_cap_mb = 1"},
        Case{.name = "several_buckets_copied",
             .hidden = 60,
             .layers = 8,
             .plugin = "bucket_cap_mb = 1\ngradient_as_bucket_view = false"},
        Case{.name = "static_graph", .micro_batch = kUneven, .plugin = "static_graph = true"},
        Case{.name = "static_graph_recompute", .recompute = true, .plugin = "static_graph = true"},
        Case{.name = "check_reduction", .plugin = "check_reduction = true\nbroadcast_buffers = false"},
        Case{.name = "unused_found",
             .micro_batch = kUneven,
             .plugin = "find_unused_parameters = true",
             .unused_block = true},
        Case{.name = "balance", .micro_batch = kUneven, .balance = true},
        Case{.name = "rare_found", .plugin = "find_unused_parameters = true", .rare = true},
        Case{.name = "unused_found_copied",
             .plugin = "find_unused_parameters = true\ngradient_as_bucket_view = false",
             .unused_block = true},
        Case{.name = "rare_found_copied",
             .plugin = "find_unused_parameters = true\ngradient_as_bucket_view = false",
             .rare = true},
        Case{.name = "unused_found_recompute",
             .micro_batch = kUneven,
             .recompute = true,
             .plugin = "find_unused_parameters = true",
             .unused_block = true},
        Case{.name = "unused_static", .plugin = "static_graph = true", .unused_block = true},
        Case{.name = "unused_static_recompute",
             .recompute = true,
             .plugin = "static_graph = true",
             .unused_block = true}),
    [](const auto& value) { return value.param.name; });

class LowPrecision : public testing::TestWithParam<Rounding> {};

TEST_P(LowPrecision, StaysNearFloat64) {
  expect_near_float64({.name = "easy"}, GetParam());
  expect_near_float64(
      {.name = "hard", .micro_batch = 1, .adamw = false, .max_norm = 0.5, .recompute = true, .balance = true},
      GetParam());
}

TEST_P(LowPrecision, IsEqualOverTheRanks) {
  const Case c{.name = "equal", .precision = GetParam().precision};
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  for_steps(c, run, [&](const data::StepBatch& batch) { run.train_step(batch); });
  std::vector<at::Tensor> sums;
  for (const auto& slice : run.model->weights()) sums.push_back(slice.value.detach().to(at::kDouble).sum());
  auto extremes = at::stack({at::stack(sums), -at::stack(sums)});
  world().group().all_reduce(extremes, comm::ReduceOp::max);
  EXPECT_TRUE(extremes.sum(0).eq(0).all().item<bool>()) << "the ranks' weights differ";
}

INSTANTIATE_TEST_SUITE_P(Bounds, LowPrecision,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 1e-2, 5e-2},
                                         Rounding{"fp16", 2e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

TEST(DataParallelRules, AStepThatOverflowsIsSkippedOnEveryRank) {
  Case c{.name = "overflow", .steps = 1, .precision = "fp16", .initial_scale = 1e30};
  const auto trace = by_train_step(c);
  for (const auto& [name, value] : start(c))
    EXPECT_TRUE(at::equal(trace.weights.at(name), value.to(at::kFloat))) << name;
}

// Without a loss scale the gradients are not checked: only the norm keeps a NaN out of weights and moments.
TEST(DataParallelRules, AGradientThatIsNotFiniteChangesNothing) {
  for (const char* precision : {"fp32", "fp64"})
    for (const bool adamw : {true, false})
      expect_not_finite_is_skipped({.name = "not_finite", .adamw = adamw, .max_norm = 0.5, .precision = precision});
}

// A bucket that lacks a gradient is never reduced: with all options, that must be an error in the first step.
TEST(DataParallelRules, AParameterWithoutAGradientIsNamed) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is reduced";
  for (const bool recompute : {false, true})
    for (const char* options : {"", "check_reduction = true", "gradient_as_bucket_view = false"}) {
      Case c{.name = "unused", .recompute = recompute, .plugin = options, .unused_block = true};
      try {
        by_train_step(c);
        ADD_FAILURE() << "a gradient was left out: " << options;
      } catch (const ConfigError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("bystander.linear.weight"), std::string::npos) << text;
        EXPECT_NE(text.find("find_unused_parameters"), std::string::npos) << text;
      }
    }
}

// A second reduction of one step would sum the first one's result again.
TEST(DataParallelRules, ASecondReductionOfAStepIsRefused) {
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  EXPECT_THROW(by_pieces({.name = "twice", .micro_batch = 1, .reduce_each = true}), ConfigError);
}

// 19 samples: some ranks have one more than others, and the last batches are ragged or empty.
TEST(DataParallelRules, EvaluationCountsEachSampleOnce) {
  const Case c{.name = "evaluation", .samples = 19};
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  const auto data = make_data(c);
  std::vector<at::Tensor> images;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < data->size(); ++i) {
    const auto sample = data->get(i, 0, false);
    images.push_back(sample->inputs.front());
    labels.push_back(sample->targets["labels"].item<std::int64_t>());
  }
  const at::NoGradGuard no_grad;
  const auto logits = run.model->module().forward({at::stack(images).to(world().device())}, {}).at(0);
  const auto wanted = at::tensor(labels).to(world().device()).unsqueeze(1);
  const auto loss = -logits.log_softmax(-1).gather(1, wanted).mean().item<double>();
  const auto hits = [&](std::int64_t k) {
    return std::get<1>(logits.topk(k, -1)).eq(wanted).sum().item<double>() / static_cast<double>(labels.size());
  };
  for (const std::int64_t batch : {1, 3, 19}) {
    auto loader = run.evaluation_loader(data, batch);
    const auto task = tasks::classification({.data = data->spec(), .topk = 3});
    const auto result = train::evaluate(run, *loader, task.get());
    EXPECT_EQ(result.samples, 19);
    EXPECT_NEAR(result.loss, loss, 1e-12 * loss);
    EXPECT_DOUBLE_EQ(result.value("accuracy"), hits(1));
    EXPECT_DOUBLE_EQ(result.value("top_k"), hits(3));
  }
}

TEST(DataParallelRules, LibTorchsGeneratorsFollowTheSeedAndTheRank) {
  const Case c{.name = "generators"};
  const auto draw = [&] {
    Booster booster(world(), make_plugin(c), make_options(c));
    const auto run = booster.boost(make_inputs(c));
    return at::rand({3}, on(at::kDouble));
  };
  const auto first = draw();
  EXPECT_TRUE(at::equal(first, draw()));
  auto from_first_rank = first.clone();
  world().group().broadcast(from_first_rank, 0);
  EXPECT_EQ(at::equal(first, from_first_rank), world().rank() == 0);
}

// Weights drawn by name are equal on all ranks and not sent; those that users' modules initialised come from rank 0.
TEST(DataParallelRules, OnlyWeightsThatMayDifferAreSentAtTheStart) {
  for (const bool adapted : {false, true}) {
    const Case c{.name = "start", .adapted = adapted};
    Booster booster(world(), make_plugin(c), make_options(c));
    auto inputs = make_inputs(c);
    inputs.source.weights = "";
    at::manual_seed(static_cast<std::uint64_t>(world().rank()));
    if (adapted) inputs.source.model = make_model(c);
    const auto before = sent("dp", "broadcast");
    const auto run = booster.boost(std::move(inputs));
    const auto elements = static_cast<std::uint64_t>(nn::parameter_count(run.model->module()));
    EXPECT_EQ(sent("dp", "broadcast") - before, adapted && world().size() > 1 ? elements : 0U) << adapted;
    for (const auto& slice : run.model->weights()) {
      auto first = slice.value.detach().clone();
      world().group().broadcast(first, 0);
      EXPECT_TRUE(at::equal(first, slice.value.detach())) << slice.placement.name;
    }
  }
}

TEST(DataParallelRules, RanksWithDifferentSeedsAreRefused) {
  const Case c{.name = "seeds"};
  auto options = make_options(c);
  options.seed = ~std::uint64_t{0} - (world().rank() == world().size() - 1 ? 1 : 0);
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  try {
    Booster booster(world(), make_plugin(c), options);
    ADD_FAILURE() << "each rank would draw different weights";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("set the same seed on all ranks"), std::string::npos) << error.what();
  }
}

// Gradients are reduced once a step for any number of microbatches: the payload is one model. The loss travels over the
// world, with the ranks' two requests for a stop.
TEST(DataParallelRules, CommStatsCountOneReductionPerStep) {
  const Case c{.name = "ledger", .samples = 24, .micro_batch = 1, .steps = 3};
  const auto before = sent("dp", "all_reduce"), of_world = sent("world", "all_reduce");
  by_train_step(c);
  const auto payload = sent("dp", "all_reduce") - before;
  const auto model = make_model(c);
  const auto elements = static_cast<std::uint64_t>(nn::parameter_count(*model));
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  EXPECT_EQ(payload, 3 * elements);
  EXPECT_GE(sent("world", "all_reduce") - of_world, 3 * 3U);
}

}  // namespace
}  // namespace trireme::tests
