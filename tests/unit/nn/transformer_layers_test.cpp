// The layers of transformers against their formulas, element by element: which keys a query attends to, which heads
// share keys and values, rotation by position, RMS norm, gated products, activations.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/attention_dropout.h"
#include "core/nn/layers/fused_attention.h"
#include "core/nn/layers/gated_linear.h"
#include "core/nn/layers/rms_norm.h"
#include "core/nn/layers/rotary_step.h"
#include "core/nn/parameters.h"

namespace trireme::nn {
namespace {

double at_index(const at::Tensor& t, std::vector<std::int64_t> index) {
  auto value = t;
  for (const auto i : index) value = value[i];
  return value.item<double>();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

/// A layer as a model, so that it gets memory.
class Alone : public Model {
 public:
  explicit Alone(std::shared_ptr<Layer> layer) {
    class Only : public Block {
     public:
      explicit Only(std::shared_ptr<Layer> layer) { register_module("layer", std::move(layer)); }
      Tensors forward(Tensors inputs, const Context&) override { return inputs; }
    };
    add_block(register_module("only", std::make_shared<Only>(std::move(layer))));
    finish();
  }
};
void give_memory(const std::shared_ptr<Layer>& layer) {
  Alone model(layer);
  materialize(model, 5, at::kDouble, at::kCPU);
}

struct Pattern {
  std::int64_t key_value_heads;
  bool causal, masked;
  AttentionKernel kernel;
  bool documents = false;
};

// Sample 1 has masked keys; with a causal pattern its first query has no key left.
TEST(TransformerLayers, AttentionMatchesItsFormula) {
  const std::int64_t samples = 2, heads = 4, tokens = 5, size = 3;
  for (const auto& [kv_heads, causal, masked, kernel, documents] :
       std::vector<Pattern>{{4, false, false, AttentionKernel::fastest},
                            {4, true, false, AttentionKernel::fastest},
                            {2, true, false, AttentionKernel::flash},
                            {1, false, true, AttentionKernel::fastest},
                            {2, true, true, AttentionKernel::flash},
                            {2, true, true, AttentionKernel::math},
                            {4, false, true, AttentionKernel::math},
                            {1, true, false, AttentionKernel::math},
                            {2, true, false, AttentionKernel::fastest, true},
                            {4, false, true, AttentionKernel::math, true}}) {
    SCOPED_TRACE(fmt::format("{} key-value heads, causal {}, mask {}, kernel {}, documents {}", kv_heads, causal,
                             masked, static_cast<int>(kernel), documents));
    const auto q = at::rand({samples, heads, tokens, size}, at::kDouble);
    const auto k = at::rand({samples, kv_heads, tokens, size}, at::kDouble);
    const auto v = at::rand({samples, kv_heads, tokens, size}, at::kDouble);
    auto mask = at::ones({samples, tokens}, at::kLong);
    mask[1][0] = mask[1][3] = 0;
    Dropout none(0);
    const auto of_documents = at::tensor({1, 1, 2, 2, 2, 7, 1, 1, 7, 0}, at::kLong).view({samples, tokens});
    const AttentionPattern pattern{.causal = causal,
                                   .key_mask = masked ? mask : at::Tensor(),
                                   .documents = documents ? of_documents : at::Tensor()};
    const auto got = attention(q, k, v, none, {}, pattern, kernel);
    for (std::int64_t b = 0; b < samples; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < tokens; ++i) {
          const auto of = h / (heads / kv_heads);
          std::vector<std::int64_t> seen;
          for (std::int64_t j = 0; j < tokens; ++j)
            if ((!causal || j <= i) && (!masked || mask[b][j].item<std::int64_t>() != 0) &&
                (!documents || of_documents[b][j].equal(of_documents[b][i])))
              seen.push_back(j);
          if (seen.empty()) continue;  // only required to be finite
          double total = 0;
          std::vector<double> out(static_cast<std::size_t>(size));
          for (const auto j : seen) {
            double score = 0;
            for (std::int64_t d = 0; d < size; ++d) score += at_index(q, {b, h, i, d}) * at_index(k, {b, of, j, d});
            const double weight = std::exp(score / std::sqrt(static_cast<double>(size)));
            total += weight;
            for (std::int64_t d = 0; d < size; ++d)
              out[static_cast<std::size_t>(d)] += weight * at_index(v, {b, of, j, d});
          }
          for (std::int64_t d = 0; d < size; ++d)
            EXPECT_NEAR(at_index(got, {b, h, i, d}), out[static_cast<std::size_t>(d)] / total, 1e-12);
        }
    EXPECT_TRUE(got.isfinite().all().item<bool>());
  }
}

// Whatever computes it: the result has the dtype of the inputs, or of autocast, and no more than their rounding errors.
TEST(TransformerLayers, FusedAttentionInHalfPrecision) {
  constexpr double kHalfUnit = 1.0 / 256;  // of bf16, relative
  const auto gradients_of = [](const at::Tensor& out, const std::vector<at::Tensor>& inputs) {
    out.sum().backward();
    std::vector<at::Tensor> gradients{out.detach()};
    for (const auto& x : inputs) gradients.push_back(std::exchange(x.mutable_grad(), at::Tensor()));
    return gradients;
  };
  for (const std::int64_t keys : {5, 200})
    for (const bool masked : {false, true})
      for (const bool by_autocast : {false, true}) {
        SCOPED_TRACE(std::to_string(keys) + (masked ? " masked" : "") + (by_autocast ? " by autocast" : ""));
        std::vector<at::Tensor> exact, half;
        for (int i = 0; i < 3; ++i) {
          half.push_back(at::randn({2, 3, i == 0 ? keys - 1 : keys, 8}, at::kBFloat16));
          exact.push_back(half.back().to(at::kDouble).requires_grad_());
          if (by_autocast) half.back() = half.back().to(at::kFloat);
          half.back().requires_grad_();
        }
        std::optional<at::Tensor> mask, exact_mask;
        if (masked) {
          mask = at::zeros({2, 1, keys - 1, keys}, half[0].options().requires_grad(false));
          mask->slice(-1, keys - 2).fill_(-1e4);
          exact_mask = mask->to(at::kDouble);
        }
        const auto expected = gradients_of(fused_attention(exact[0], exact[1], exact[2], exact_mask, !masked), exact);
        at::autocast::set_autocast_enabled(at::kCPU, by_autocast);
        const auto out = fused_attention(half[0], half[1], half[2], mask, !masked);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();
        EXPECT_EQ(out.scalar_type(), at::kBFloat16);
        const auto found = gradients_of(out, half);
        for (std::size_t i = 0; i < found.size(); ++i)
          EXPECT_LE(largest_difference(found[i].to(at::kDouble), expected[i]),
                    4 * kHalfUnit * expected[i].abs().max().item<double>())
              << i;
      }
}

TEST(TransformerLayers, AMaskOfAnotherLengthIsRefused) {
  const auto x = at::rand({1, 2, 4, 2}, at::kDouble);
  Dropout none(0);
  EXPECT_THROW(attention(x, x, x, none, {}, {.key_mask = at::ones({1, 5}, at::kLong)}), UsageError);
  EXPECT_THROW(attention(x, x, x, none, {}, {.documents = at::ones({1, 5}, at::kLong)}), UsageError);
}

// The same weights in one projection or in three, also with shared key-value heads, and for some of the queries.
TEST(TransformerLayers, FusedProjectionsEqualThree) {
  for (const std::int64_t kv_heads : {4, 2, 1}) {
    SelfAttention::Options options{.hidden = 6, .heads = 4, .key_value_heads = kv_heads, .head_size = 3, .init_std = 1};
    const auto three = std::make_shared<SelfAttention>(options);
    options.names = {"c_attn"};
    const auto fused = std::make_shared<SelfAttention>(options);
    give_memory(three);
    std::vector<at::Tensor> weights, biases;
    for (const auto& part : three->projections.parts()) {
      part->set_storage("bias", at::rand(part->bias.sizes(), at::kDouble));
      weights.push_back(part->weight.detach());
      biases.push_back(part->bias.detach());
    }
    auto& one = *fused->projections.parts().at(0);
    one.set_storage("weight", at::cat(weights));
    one.set_storage("bias", at::cat(biases));
    EXPECT_TRUE(fused->named_parameters().contains("c_attn.weight"));
    const auto x = at::rand({2, 5, 6}, at::kDouble);
    for (const std::int64_t query_tokens : {0, 2}) {
      const auto expected = three->forward(x, {}, query_tokens), got = fused->forward(x, {}, query_tokens);
      EXPECT_EQ(got.sizes(), (at::IntArrayRef{2, query_tokens == 0 ? 5 : 2, 12}));
      EXPECT_LE(largest_difference(got, expected), 1e-14) << kv_heads << " " << query_tokens;
    }
  }
}

// In every slice, the mask of padded samples does not depend on the padded length; that of full ones is a Dropout's.
TEST(TransformerLayers, TheProbabilityMaskFollowsPositions) {
  Dropout half(0.5);
  half.set_path("attention");
  const Context context{.training = true, .seed = 1, .step = 2, .sample_ids = at::tensor({7, 4}, at::kLong)};
  const std::int64_t heads = 3, longest = 6;
  const auto mask = [&](std::int64_t first_head, std::int64_t count, shard::Range queries, shard::Range keys,
                        std::int64_t length, bool padded) {
    return probability_mask(half, context, at::zeros({2, count, queries.size(), keys.size()}),
                            {first_head, queries, keys, length, length, padded});
  };
  const auto part = [](const at::Tensor& of, std::int64_t first_head, std::int64_t count, shard::Range queries,
                       shard::Range keys) {
    return of.narrow(1, first_head, count).narrow(2, queries.begin, queries.size()).narrow(3, keys.begin, keys.size());
  };
  for (const bool padded : {true, false}) {
    const auto full = mask(0, heads, {0, longest}, {0, longest}, longest, padded);
    EXPECT_TRUE(at::equal(mask(1, 2, {2, 5}, {1, 6}, longest, padded), part(full, 1, 2, {2, 5}, {1, 6})));
    const auto shorter = mask(0, heads, {0, 4}, {0, 4}, 4, padded);
    EXPECT_EQ(at::equal(shorter, part(full, 0, heads, {0, 4}, {0, 4})), padded);
    EXPECT_FALSE(at::equal(full.select(0, 0), full.select(0, 1)));
    EXPECT_FALSE(at::equal(full.select(1, 0), full.select(1, 1)));
    EXPECT_EQ(at::equal(full, half.mask_of(at::zeros(full.sizes()), context)), !padded);
  }
  Context of_one = context;
  of_one.sample_ids = at::tensor({7}, at::kLong);
  EXPECT_THROW(probability_mask(half, of_one, at::zeros({2, 1, 1, 1}), {0, {0, 1}, {0, 1}, 1, 1}), UsageError);
}

// The data have a mask or positions that the model passes to no block.
TEST(TransformerLayers, ASideInputThatIsNotPassedOnIsReported) {
  struct Reader : Model {
    explicit Reader(std::vector<std::string> side) : side_inputs(std::move(side)) {
      const auto rotary = std::make_shared<const Rotary>(Rotary::Options{.head_size = 2});
      struct Only : Block {
        explicit Only(const std::shared_ptr<const Rotary>& rotary) {
          register_module("mix", std::make_shared<SelfAttention>(
                                     SelfAttention::Options{.hidden = 4, .heads = 2, .rotary = rotary}));
        }
        Tensors forward(Tensors inputs, const Context&) override { return inputs; }
      };
      add_block(register_module("only", std::make_shared<Only>(rotary)));
      finish();
    }
    std::vector<std::string> input_names() const override { return {"input_ids"}; }
    std::vector<std::string> side_input_names() const override { return side_inputs; }
    std::vector<std::string> side_inputs;
  };
  const DataSpec ids{.inputs = {{"input_ids"}, {"unknown"}}},
      all{.inputs = {{"input_ids"}, {"attention_mask"}, {"position_ids"}}};
  Reader none({}), mask({"attention_mask"}), both({"attention_mask", "position_ids"});
  EXPECT_EQ(unread_side_input(none, ids), "");
  EXPECT_EQ(unread_side_input(both, all), "");
  const auto no_mask = unread_side_input(none, all);
  EXPECT_NE(no_mask.find("\"attention_mask\", which the attention layer \"only.mix\" reads"), std::string::npos)
      << no_mask;
  EXPECT_NE(unread_side_input(mask, all).find("return \"position_ids\" in Model::side_input_names()"),
            std::string::npos);
}

TEST(TransformerLayers, RotaryTurnsPairsByThePosition) {
  const std::int64_t size = 6, tokens = 4;
  const Rotary rotary({.head_size = size, .theta = 100});
  const auto x = at::rand({2, 3, tokens, size}, at::kDouble);
  const auto positions = at::tensor({5, 0, 2, 9, 1, 7, 3, 3}, at::kLong).view({2, tokens});
  for (const bool given : {false, true})
    for (const std::int64_t first : {0, 2}) {
      Context context;
      if (given) context.side.set("position_ids", at::cat({at::zeros({2, first}, at::kLong), positions}, 1));
      const auto got = Rotary::rotate(x, rotary.angles(x, first, context));
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t i = 0; i < size / 2; ++i) {
            const auto position = given ? positions[b][t].item<std::int64_t>() : first + t;
            const double angle = static_cast<double>(position) /
                                 std::pow(100.0, 2.0 * static_cast<double>(i) / static_cast<double>(size));
            const double a = at_index(x, {b, 1, t, i}), c = at_index(x, {b, 1, t, i + size / 2});
            EXPECT_NEAR(at_index(got, {b, 1, t, i}), a * std::cos(angle) - c * std::sin(angle), 1e-12);
            EXPECT_NEAR(at_index(got, {b, 1, t, i + size / 2}), c * std::cos(angle) + a * std::sin(angle), 1e-12);
          }
      // Other positions in the same tensor have other angles; queries may be fewer than keys.
      if (given) context.side["position_ids"].add_(1);
      const auto next = rotary.angles(x, first + (given ? 0 : 1), context);
      EXPECT_GE(largest_difference(Rotary::rotate(x, next), got), 1e-3);
      EXPECT_LE(largest_difference(Rotary::rotate(x.narrow(2, 0, 2), next), Rotary::rotate(x, next).narrow(2, 0, 2)),
                0);
    }
  EXPECT_THROW(Rotary({.head_size = 5}), ConfigError);
}

// One pass gives what LibTorch's operators give, forward and backward, wherever the tensors lie.
TEST(TransformerLayers, RotationsHaveTheirGradients) {
  const Rotary rotary({.head_size = 6, .theta = 100});
  for (const auto& [dtype, bound] : {std::pair{at::kDouble, 1e-14}, {at::kFloat, 1e-6}, {at::kBFloat16, 4e-2}}) {
    const auto projected = [dtype = dtype](std::int64_t tokens, std::int64_t heads) {
      return at::randn({2, tokens, heads, 6}, at::kDouble).to(dtype).set_requires_grad(true);
    };
    const auto q = projected(3, 4), k = projected(5, 2);
    const auto of_q = at::randn({2, 4, 3, 6}, at::kDouble).to(dtype), of_k = at::randn({2, 2, 5, 6}, dtype);
    const auto angles = rotary.angles(k.transpose(1, 2).detach(), 0, {});
    const auto results = [&](std::vector<at::Tensor> made) {
      const auto gradients = torch::autograd::grad(made, {q, k}, {of_q, of_k});
      made.insert(made.end(), gradients.begin(), gradients.end());
      return made;
    };
    const auto by_operators = [&](const at::Tensor& x) {
      return rotate_by_operators(x, angles.cos, angles.sin, /*back=*/false);
    };
    const auto heads_q = q.transpose(1, 2), heads_k = k.transpose(1, 2);
    const auto got = results({Rotary::rotate(heads_q, angles), Rotary::rotate(heads_k, angles)}),
               expected = results({by_operators(heads_q), by_operators(heads_k)});
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(largest_difference(got[i].to(at::kDouble), expected[i].to(at::kDouble)), bound) << dtype << " " << i;
      EXPECT_EQ(got[i].strides(), expected[i].strides()) << dtype << " " << i;
    }
  }
}

TEST(TransformerLayers, RmsNormAndGatedLinear) {
  const auto norm = std::make_shared<RmsNorm>(4, 0.5);
  give_memory(norm);
  const auto x = at::rand({3, 4}, at::kDouble);
  const auto wanted = x / (x.square().mean(-1, true) + 0.5).sqrt();
  EXPECT_LE(largest_difference(norm->forward(x, {}), wanted), 1e-14);

  const auto gated =
      std::make_shared<GatedLinear>(GatedLinear::Options{.in = 4, .out = 3, .bias = true, .init_std = 1});
  give_memory(gated);
  const auto half = [&](std::size_t part) {
    const auto& linear = *gated->projections.parts()[part];
    return at::matmul(x, linear.weight.t()) + linear.bias;
  };
  const auto gate = half(0);
  EXPECT_LE(largest_difference(gated->forward(x, {}), gate / (1 + (-gate).exp()) * half(1)), 1e-14);
}

TEST(TransformerLayers, ActivationsByTheirNames) {
  const auto x = at::arange(-3, 3, 0.5, at::kDouble);
  const std::vector<std::pair<const char*, std::function<double(double)>>> formulas{
      {"gelu", [](double v) { return v / 2 * (1 + std::erf(v / std::sqrt(2.0))); }},
      {"gelu_new", [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }},
      {"relu", [](double v) { return std::max(v, 0.0); }},
      {"silu", [](double v) { return v / (1 + std::exp(-v)); }},
      {"tanh", [](double v) { return std::tanh(v); }}};
  for (const auto& [name, formula] : formulas) {
    const auto y = activate(x, activation_of(name));
    for (std::int64_t i = 0; i < x.size(0); ++i)
      EXPECT_NEAR(y[i].item<double>(), formula(x[i].item<double>()), 1e-12) << name;
  }
  EXPECT_THROW(activation_of("gelo"), ConfigError);
}

TEST(TransformerLayers, HeadsThatDoNotDivideAreRefused) {
  using O = SelfAttention::Options;
  EXPECT_THROW(SelfAttention(O{.hidden = 10, .heads = 3}), ConfigError);
  EXPECT_THROW(SelfAttention(O{.hidden = 12, .heads = 4, .key_value_heads = 3}), ConfigError);
  EXPECT_THROW(SelfAttention(O{.hidden = 12, .heads = 4, .names = {"q", "k", "v", "o"}}), ConfigError);
}

}  // namespace
}  // namespace trireme::nn
