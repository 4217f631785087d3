// NextToken: with cached keys and values the scores are those of a forward pass over the whole text.
#include "core/train/next_token.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/nn/data_spec.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/parameters.h"
#include "models/registry.h"

namespace trireme::train {
namespace {

/// Adds the tokens of each forward pass to `passed`.
NextToken::Forward forward_of(nn::Model& model, std::int64_t& passed) {
  return [&](const NextToken::Pass& pass) {
    const at::NoGradGuard no_grad;
    passed += pass.ids.numel();
    nn::Context context{.tokens = pass.ids.size(1)};
    if (pass.positions.defined()) context.side.set("position_ids", pass.positions);
    const auto scores = model.forward({pass.ids}, context).at(0);
    return scores.index({at::arange(scores.size(0)), pass.last});
  };
}

/// Lets both models see texts that grow by a token, or end, and new ones.
void expect_equal_scores(nn::Model& plain, NextToken& next) {
  Texts texts;
  const auto expect_equal = [&] {
    const at::NoGradGuard no_grad;
    const auto got = next(texts);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto count = static_cast<std::int64_t>(texts[i].size());
      const auto scores = plain.forward({at::tensor(texts[i]).unsqueeze(0)}, {.tokens = count}).at(0);
      const auto expected = scores.select(0, 0).select(0, -1);
      EXPECT_LE((got[static_cast<std::int64_t>(i)] - expected).abs().max().item<double>(),
                1e-12 * expected.abs().max().item<double>())
          << "text " << i << ", " << texts[i].size() << " tokens";
    }
  };
  for (const auto& begin : {Texts{{1, 2, 3}}, Texts{{4}, {1, 2, 3, 4, 5}, {9, 8}}}) {
    texts = begin;
    for (int i = 0; i < 20; ++i) {
      expect_equal();
      for (std::size_t t = 0; t < texts.size(); ++t)
        if (t < 2 || i < 4) texts[t].push_back((7 * i + 3 + static_cast<int>(t)) % 40);
    }
    for (int i = 0; i < 3; ++i) {  // as where the model has no more positions
      texts[0].erase(texts[0].begin());
      expect_equal();
      texts[0].push_back(i);
    }
  }
  texts = {{5}};
  expect_equal();
  texts[0].push_back(6);
  expect_equal();
}

struct Case {
  const char *model, *config;
  bool caches = true;
};
void PrintTo(const Case& value, std::ostream* out) { *out << value.model << " " << value.config; }

class NextTokenOf : public testing::TestWithParam<Case> {
 protected:
  static std::shared_ptr<nn::Model> make() {
    const auto kind = models::all_models().at(GetParam().model);
    auto config = nlohmann::json::parse(GetParam().config);
    config["model_type"] = GetParam().model;
    auto options = kind->default_options();
    EXPECT_TRUE(kind->from_hf(options.get(), config, "config.json"));
    kind->resolve(options.get(),
                  {.inputs = {{"input_ids", at::kLong, {-1}}}, .targets = {{nn::kLabels, at::kLong, {-1}}}});
    std::shared_ptr<nn::Model> model = kind->make(options.get());
    nn::materialize(*model, 3, at::kDouble, at::kCPU);
    return model;
  }
};

TEST_P(NextTokenOf, EqualsTheWholeText) {
  const auto plain = make(), caching = make();
  std::int64_t passed = 0;
  NextToken next(*caching, forward_of(*caching, passed));
  ASSERT_EQ(next.uses_cache(), GetParam().caches);
  next({{1, 2, 3}});
  next({{1, 2, 3, 4}});  // the first one that is computed both ways
  passed = 0;
  next({{1, 2, 3, 4, 5}});
  EXPECT_EQ(passed, GetParam().caches ? 1 : 5);
  expect_equal_scores(*plain, next);
  EXPECT_EQ(next.uses_cache(), GetParam().caches);
}

constexpr const char* kGpt2 = R"({"n_embd": 24, "n_layer": 2, "n_head": 3, "vocab_size": 40, "n_positions": 64})";
#define TRIREME_LLAMA                                                                                                   \
  R"("hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,)" \
  R"("intermediate_size": 48, "max_position_embeddings": 64, "head_dim": 8)"
INSTANTIATE_TEST_SUITE_P(
    Models, NextTokenOf,
    testing::Values(Case{"gpt2", kGpt2}, Case{"llama", "{" TRIREME_LLAMA "}"}, Case{"qwen3", "{" TRIREME_LLAMA "}"},
                    Case{"llama", "{" TRIREME_LLAMA R"(, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})"},
                    Case{"llama", "{" TRIREME_LLAMA R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})",
                         false}));
#undef TRIREME_LLAMA

/// Attention, and if `mixes` also a layer that nobody knows of.
class OwnModel : public nn::Model {
 public:
  explicit OwnModel(bool mixes) {
    class Only : public nn::Block {
     public:
      explicit Only(bool mixes) : mixes_(mixes) {
        words_ = register_module(
            "words", std::make_shared<nn::Embedding>(nn::Embedding::Options{.vocabulary = 40, .features = 8}));
        attention_ = register_module("attention", std::make_shared<nn::SelfAttention>(nn::SelfAttention::Options{
                                                      .hidden = 8, .heads = 2, .init_std = 1, .causal = true}));
      }
      nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
        const auto x = words_->forward(inputs.at(0), context);
        const auto y = attention_->forward(x, context);
        return {mixes_ ? y + x.mean(1, /*keepdim=*/true) : y};
      }

     private:
      bool mixes_;
      std::shared_ptr<nn::Embedding> words_;
      std::shared_ptr<nn::SelfAttention> attention_;
    };
    add_block(register_module("only", std::make_shared<Only>(mixes)));
    finish();
    nn::materialize(*this, 3, at::kDouble, at::kCPU);
  }
  [[nodiscard]] std::vector<std::string> side_input_names() const override { return {"position_ids"}; }
};

// Scores are in fp32 whatever the model computes in: they are as coarse as its keys.
TEST(NextToken, AllowsTheRoundingOfHalfPrecision) {
  OwnModel model(/*mixes=*/false);
  for (auto& parameter : model.parameters()) parameter.set_data(parameter.to(at::kBFloat16));
  std::int64_t passed = 0;
  NextToken next(model, [forward = forward_of(model, passed)](const NextToken::Pass& pass) {
    return forward(pass).to(at::kFloat) * (pass.positions.defined() ? 1.01 : 1);
  });
  next({{1, 2, 3}});
  next({{1, 2, 3, 4}});
  EXPECT_TRUE(next.uses_cache());
}

// Behind the end of the shorter text there are tokens, which such a model reads.
TEST(NextToken, FindsAModelThatReadsPadding) {
  OwnModel plain(/*mixes=*/true), caching(/*mixes=*/true);
  std::int64_t passed = 0;
  NextToken next(caching, forward_of(caching, passed));
  const at::NoGradGuard no_grad;
  const auto got = next({{4}, {1, 2, 3, 4, 5}});
  EXPECT_TRUE(got[0].equal(plain.forward({at::tensor({4}, at::kLong).unsqueeze(0)}, {.tokens = 1}).at(0)[0][-1]));
  EXPECT_FALSE(next.uses_cache());
}

TEST(NextToken, KeepsItsCacheWhenTheComparisonFails) {
  OwnModel plain(/*mixes=*/false), caching(/*mixes=*/false);
  std::int64_t passed = 0;
  int left = 2;
  NextToken next(caching, [&, forward = forward_of(caching, passed)](const NextToken::Pass& pass) {
    if (left-- == 0) throw std::runtime_error("out of memory");
    return forward(pass);
  });
  next({{1, 2, 3}});
  EXPECT_THROW(next({{1, 2, 3, 4}}), std::runtime_error);
  expect_equal_scores(plain, next);
  EXPECT_TRUE(next.uses_cache());
}

TEST(NextToken, FindsAModelThatComputesSomethingElse) {
  for (const bool mixes : {false, true}) {
    OwnModel plain(mixes), caching(mixes);
    std::int64_t passed = 0;
    NextToken next(caching, forward_of(caching, passed));
    EXPECT_TRUE(next.uses_cache());
    expect_equal_scores(plain, next);
    EXPECT_EQ(next.uses_cache(), !mixes);
  }
}

}  // namespace
}  // namespace trireme::train
