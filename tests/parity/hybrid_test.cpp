// Contract C1 for HybridParallel: every layout on the ranks of this program against one process, in float64.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

/// Several small buckets.
constexpr const char* kSmallHybridBuckets = "zero_bucket_size_in_m = 0.001";

struct HybridSizes {
  std::int64_t tp, zero, heads = 3;
};

/// Every case in every layout that is tried in this world.
std::vector<Case> hybrid_cases(const std::vector<HybridSizes>& layouts, const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const auto& [tp, zero, heads] : layouts)
    for (auto c : cross(
             "hybrid_parallel", kSmallHybridBuckets,
             {{fmt::format("tp{}_zero{}", tp, zero), fmt::format("tp_size = {}\nzero_stage = {}", tp, zero)}}, cases)) {
      c.tp = tp;
      c.heads = heads;
      out.push_back(std::move(c));
    }
  return tried(std::move(out));
}

class Hybrid : public testing::TestWithParam<Case> {};

TEST_P(Hybrid, EqualsOneProcess) { expect_same_as_one_process(GetParam()); }

// 3 heads on 2 ranks, 5 classes on 2, 3 and 4, 8 samples on 1 to 8; 11 samples in batches of 8: the second is ragged.
INSTANTIATE_TEST_SUITE_P(Layouts, Hybrid,
                         testing::ValuesIn(hybrid_cases(
                             {{1, 0}, {1, 3}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {3, 0}, {4, 0, 4}, {4, 2, 6}, {4, 3, 6}},
                             {Case{.name = "plain"}, Case{.name = "sgd_clip", .adamw = false, .max_norm = 0.5},
                              Case{.name = "everything",
                                   .micro_batch = 1,
                                   .adamw = false,
                                   .dropout = 0.2,
                                   .max_norm = 0.3,
                                   .recompute = true}})),
                         kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Cases, Hybrid,
    testing::ValuesIn(hybrid_cases(
        {{2, 0}, {2, 2}, {2, 3}},
        {Case{.name = "one_bucket", .plugin = "zero_bucket_size_in_m = 12"},
         Case{.name = "accumulate", .micro_batch = kUneven},
         Case{.name = "dropout", .dropout = 0.3},
         Case{.name = "smooth_labels", .smoothing = 0.1},
         Case{.name = "gathered_labels", .smoothing = 0.1, .plugin = "parallel_output = false"},
         Case{.name = "recompute", .recompute = true},
         Case{.name = "words_tied", .micro_batch = 3, .vocabulary = Case::Vocabulary::tied},
         Case{.name = "words_tied_gathered", .plugin = "parallel_output = false", .vocabulary = Case::Vocabulary::tied},
         Case{.name = "words_head", .dropout = 0.2, .recompute = true, .vocabulary = Case::Vocabulary::untied},
         Case{.name = "reduce_each_clip", .micro_batch = kUneven, .max_norm = 0.5, .reduce_each = true},
         Case{.name = "two_epochs", .samples = 11, .steps = 4, .max_norm = 0.5},
         Case{.name = "freeze_no_decay", .freeze = {"*layer.0.*", "cls_token"}, .no_decay = {"*bias", "layernorm"}},
         Case{.name = "freeze_inputs", .freeze = {"*embeddings*", "*layer.0.*", "*query*", "*intermediate*bias"}},
         Case{.name = "lora", .micro_batch = 3, .dropout = 0.2, .max_norm = 0.5, .lora = adapters()},
         Case{.name = "lora_head",
              .recompute = true,
              .lora = nn::LoraOptions{.rank = 2,
                                      .dropout = 0.1,
                                      .target = {"value", "classifier", "layer.1.output.dense"},
                                      .train = std::vector<std::string>{"layernorm_before"}}},
         Case{.name = "narrow", .hidden = 6, .mlp = 1, .layers = 1},  // one rank has no part of the MLP
         Case{.name = "unused", .micro_batch = kUneven, .unused_block = true},
         Case{.name = "rare", .rare = true},
         Case{.name = "rare_accumulate", .micro_batch = kUneven, .adamw = false, .rare = true},
         Case{.name = "twice", .micro_batch = kUneven, .twice = true},
         Case{.name = "twice_recompute", .dropout = 0.2, .recompute = true, .twice = true}})),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(Options, Hybrid,
                         testing::ValuesIn(hybrid_cases(
                             {{2, 1}, {2, 2}, {2, 3}},
                             {Case{.name = "offload_late",
                                   .max_norm = 0.5,
                                   .plugin = "cpu_offload = true\noverlap_communication = false\noverlap_allgather = "
                                             "true"}})),
                         kCaseName);

constexpr const char* kAllKernels = "enable_fused_normalization = true\nenable_jit_fused = true";

// Each choice of kernels alone; the ladder combines all of them in every kind of layout.
INSTANTIATE_TEST_SUITE_P(
    Kernels, Hybrid,
    testing::ValuesIn(hybrid_cases(
        {{1, 0}, {2, 0}, {2, 2}},
        {Case{.name = "scores", .plugin = "enable_flash_attention = false"},
         Case{.name = "flash", .max_norm = 0.5, .plugin = "enable_flash_attention = true", .fused_attention = true},
         Case{.name = "norm", .micro_batch = kUneven, .plugin = "enable_fused_normalization = true"},
         Case{.name = "norm_dropout", .dropout = 0.2, .plugin = "enable_fused_normalization = true"},
         Case{.name = "jit", .micro_batch = kUneven, .plugin = "enable_jit_fused = true"},
         Case{.name = "jit_dropout", .dropout = 0.2, .recompute = true, .plugin = "enable_jit_fused = true"},
         Case{.name = "all_frozen",
              .dropout = 0.2,
              .freeze = {"*layernorm_after.weight", "*intermediate*bias", "*layer.0.attention*"},
              .plugin = kAllKernels},
         Case{.name = "all_optimization", .dropout = 0.2, .plugin = "enable_all_optimization = true"},
         Case{.name = "half_recompute",
              .micro_batch = 2,
              .dropout = 0.2,
              .recompute = true,
              .layers = 3,
              .plugin = "recompute_ratio = 0.5"}})),
    kCaseName);

class HybridPrecision : public testing::TestWithParam<Rounding> {};

TEST_P(HybridPrecision, StaysNearFloat64) {
  for (const auto& c :
       hybrid_cases({{2, 0}, {2, 2}, {2, 3}},
                    {Case{.name = "easy"}, Case{.name = "fused", .plugin = kAllKernels},
                     Case{.name = "hard", .micro_batch = 1, .adamw = false, .max_norm = 0.5, .recompute = true}}))
    expect_near_float64(c, GetParam());
}

// The bounds are those of ZeRO's suite, because the same numbers are rounded.
INSTANTIATE_TEST_SUITE_P(Bounds, HybridPrecision,
                         testing::Values(Rounding{"fp32", 1e-6, 1e-5}, Rounding{"bf16", 2e-2, 5e-2},
                                         Rounding{"fp16", 4e-3, 1e-2}),
                         [](const auto& value) { return std::string(value.param.precision); });

// A criterion that may use the outputs in any way gets complete logits.
TEST(HybridRules, AUsersCriterionGetsCompleteLogits) {
  for (const auto& c : hybrid_cases({{2, 0}}, {Case{.name = "criterion", .steps = 1}})) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto inputs = make_inputs(c);
    std::int64_t classes = 0;
    inputs.task = task_of([&classes](const nn::Tensors& outputs, const data::Batch& batch) {
      classes = outputs.front().size(-1);
      return nn::cross_entropy(outputs.front(), batch.targets[nn::kLabels]);
    });
    auto run = booster.boost(std::move(inputs));
    run.loader->start_epoch(0);
    const auto loss = run.train_step(*run.loader->next()).loss.item<double>();
    EXPECT_EQ(classes, 5);
    EXPECT_NEAR(loss, reference(c).losses.front(), kBound * loss);
  }
}

/// Claims to take sharded logits, but reads them itself.
struct Liar : Task {
  at::Tensor loss(const nn::Tensors& outputs, const data::Batch&, const LossOptions&) const override {
    return outputs.front().square().mean();
  }
  bool takes_sharded_logits() const override { return true; }
};

TEST(HybridRules, ShardedLogitsNeedTheGivenCrossEntropy) {
  for (const auto& c : hybrid_cases({{2, 0}}, {Case{.name = "liar", .steps = 1}})) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto inputs = make_inputs(c);
    inputs.task = std::make_shared<Liar>();
    auto run = booster.boost(std::move(inputs));
    run.loader->start_epoch(0);
    EXPECT_THROW(run.train_step(*run.loader->next()), ConfigError);
  }
}

// Elements of activations sent in a step by the formulas of docs/parallelism.md, for b samples a rank, n tokens, width
// h, l layers and k classes. The last layer computes the class token alone.
TEST(HybridRules, TrafficMatchesTheFormulas) {
  for (auto c : hybrid_cases({{2, 0}, {3, 0}}, {Case{.name = "traffic", .steps = 1, .layers = 3},
                                                Case{.name = "recompute", .steps = 1, .recompute = true, .layers = 3},
                                                Case{.name = "gathered",
                                                .steps = 1,
                                                .recompute = true,
                                                .layers = 3,
                                                .plugin = "parallel_output = false"}})) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(make_inputs(c));
    run.loader->start_epoch(0);
    const auto batch = *run.loader->next();
    const auto b = static_cast<std::uint64_t>(batch.micro.front().size());
    const auto reduced = sent("tp", "all_reduce"), gathered = sent("tp", "all_gather");
    run.train_step(batch);
    const std::uint64_t n = 10, h = static_cast<std::uint64_t>(c.hidden), l = 3, k = 5;
    const auto forward = (l - 1) * 2 * b * n * h + 2 * b * h;
    const auto backward = l * b * n * h + (l - 1) * b * n * h + b * h + b * h;  // attention, MLP, classifier
    // A recomputed block runs forward twice, also the head, whose logits are gathered again. The loss runs once.
    const std::uint64_t times = c.recompute ? 2 : 1;
    const bool parallel_loss = c.name.find("gathered") == std::string::npos;
    const auto loss = parallel_loss ? 4 * b : 0;
    EXPECT_EQ(sent("tp", "all_reduce") - reduced, times * forward + backward + loss + 1) << c.name;  // 1: the norm
    EXPECT_EQ(sent("tp", "all_gather") - gathered, parallel_loss ? 0 : times * b * k) << c.name;
  }
}

// Only the first blocks of a stage run forward again in the backward pass, which shows in what their layers send. The
// blocks are the embeddings, four layers and the head.
TEST(HybridRules, PartialRecomputeCoversTheFirstBlocks) {
  if (!is_tried(2)) GTEST_SKIP() << "for 2 and 4 ranks";
  const auto reduced = [](const std::string& keys, bool recompute) {
    const auto c =
        hybrid_cases({{2, 0}}, {Case{.name = "part", .steps = 1, .recompute = recompute, .layers = 4, .plugin = keys}})
            .front();
    Booster booster(world(), make_plugin(c), make_options(c));
    auto run = booster.boost(make_inputs(c));
    run.loader->start_epoch(0);
    const auto batch = *run.loader->next();
    const auto before = sent("tp", "all_reduce");
    run.train_step(batch);
    const std::uint64_t layer = 2 * static_cast<std::uint64_t>(batch.micro.front().size()) * 10 * 24;
    return std::pair{sent("tp", "all_reduce") - before, layer};
  };
  const auto [none, layer] = reduced("", false);
  for (const auto& [keys, layers] : {std::pair{"recompute_ratio = 0.05", 0},  // the first block, which sends nothing
                                     {"recompute_ratio = 0.4", 1},
                                     {"recompute_ratio = 0.5", 2},
                                     {"recompute_layers_per_stage = [1]", 0},
                                     {"recompute_layers_per_stage = [4]", 3},
                                     {"recompute_ratio = 0.66", 3}})
    EXPECT_EQ(reduced(keys, true).first - none, static_cast<std::uint64_t>(layers) * layer) << keys;
}

TEST(HybridRules, KernelsForMissingLayersAreRefused) {
  for (const auto* key : {"enable_flash_attention", "enable_fused_normalization", "enable_jit_fused"}) {
    const auto c =
        hybrid_cases({{1, 0}}, {Case{.name = "adapted", .plugin = fmt::format("{} = true", key), .adapted = true}});
    const auto inputs = make_inputs(c.front());
    EXPECT_THROW(make_plugin(c.front())->check_model(inputs.source, RunSettings{}), ConfigError) << key;
  }
  by_train_step(
      hybrid_cases({{1, 0}}, {Case{.name = "adapted", .plugin = "enable_all_optimization = true", .adapted = true}})
          .front());
}

TEST(HybridRules, ARankHoldsItsShareOfShardedWeights) {
  for (const auto& c : hybrid_cases({{2, 0}, {3, 0}}, {Case{.name = "memory", .hidden = 24, .layers = 2}})) {
    Booster booster(world(), make_plugin(c), make_options(c));
    const auto run = booster.boost(make_inputs(c));
    std::int64_t held = 0;
    const std::int64_t tp = c.tp, me = world().rank() % tp;
    const auto share = [&](std::int64_t size) {
      return shard::split(size, static_cast<int>(tp), static_cast<int>(me)).size();
    };
    const std::int64_t h = 24, inner = 48, k = 5, patch = 4, tokens = 10, d = h / 3;
    held += h * 3 * patch * patch + h + h + tokens * h;                    // embeddings
    held += 2 * (2 * 2 * h);                                               // norms of the layers
    held += 2 * 3 * (share(3) * d * h + share(3) * d);                     // q, k, v
    held += 2 * (share(3) * d * h + h);                                    // attention's output
    held += 2 * (share(inner) * h + share(inner) + share(inner) * h + h);  // MLP
    held += 2 * h + share(k) * h + share(k);                               // head
    // Each bucket is padded to its alignment.
    EXPECT_NEAR(static_cast<double>(run.model->report().parameter_bytes), static_cast<double>(8 * held),
                0.2 * 8 * static_cast<double>(held));
    std::int64_t total = 0;
    for (const auto& slice : run.model->weights()) total += slice.placement.local_numel();
    EXPECT_EQ(total, held) << c.name;
  }
}

TEST(HybridRules, EvaluationEqualsTorchDdp) {
  for (const auto& c :
       hybrid_cases({{1, 0}, {2, 0}, {2, 3}, {3, 0}, {4, 0, 4}}, {Case{.name = "evaluation", .samples = 19}}))
    expect_evaluation_of_torch_ddp(c);
}

TEST(HybridRules, ADropoutOfShardedFeaturesNeedsItsRole) {
  for (const auto& c :
       hybrid_cases({{2, 0}}, {Case{.name = "inside", .dropout = 0.2, .vocabulary = Case::Vocabulary::untied}})) {
    Booster booster(world(), make_plugin(c), make_options(c));
    auto inputs = make_inputs(c);
    std::erase_if(inputs.source.policy.tensor, [](const auto& row) { return row.role == nn::role::sharded_dropout; });
    auto run = booster.boost(std::move(inputs));
    run.loader->start_epoch(0);
    try {
      run.train_step(*run.loader->next());
      FAIL() << "the mask of a slice was drawn as if for the whole";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("give it the role sharded_dropout"), std::string::npos) << error.what();
    }
  }
}

TEST(HybridRules, AModelWithoutAPolicyIsRefused) {
  if (world().size() == 1) GTEST_SKIP() << "needs more ranks";
  auto c = hybrid_cases({{world().size(), 0}}, {Case{.name = "adapted", .adapted = true}}).front();
  try {
    by_train_step(c);
    FAIL() << "sharded without a policy";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("this model has no policy for tensor or sequence parallelism"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trireme::tests
