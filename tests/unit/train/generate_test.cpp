// How tokens are chosen by their scores, and what a model sees while a text grows.
#include "core/train/generate.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace trireme::train {
namespace {

using TokenIds = std::vector<std::int64_t>;

at::Tensor scores_of(std::vector<double> values, at::ScalarType dtype = at::kDouble) {
  return at::tensor(values).to(dtype);
}

/// How often each token is drawn.
std::map<std::int64_t, double> draw_shares(const at::Tensor& logits, const SamplingOptions& options) {
  constexpr int kDraws = 20000;
  std::map<std::int64_t, double> out;
  for (int draw = 0; draw < kDraws; ++draw) out[sample_token(logits, options, draw)] += 1.0 / kDraws;
  return out;
}

TEST(SampleToken, GreedyTakesTheBestAndOfEqualOnesTheFirst) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(sample_token(scores_of({-1, 3, 2, 3}, dtype), {}, 0), 1);
    EXPECT_EQ(sample_token(scores_of({-5}, dtype), {.top_k = 1}, 7), 0);
  }
}

TEST(SampleToken, DrawsByTheProbabilitiesOfTheTemperature) {
  const auto logits = scores_of({0, std::log(2.0), std::log(5.0), -std::numeric_limits<double>::infinity()});
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const auto got = draw_shares(logits, {.temperature = temperature});
    std::vector<double> expected;
    double total = 0;
    for (const double odds : {1.0, 2.0, 5.0}) {
      expected.push_back(std::pow(odds, 1 / temperature));
      total += expected.back();
    }
    ASSERT_EQ(got.size(), 3U);
    for (std::int64_t id = 0; id < 3; ++id)
      EXPECT_NEAR(got.at(id), expected[static_cast<std::size_t>(id)] / total, 0.015) << temperature << " " << id;
  }
}

TEST(SampleToken, TopKDrawsAmongTheBestOnly) {
  const auto got = draw_shares(scores_of({1, 4, 1, 4 + std::log(3.0), 1}), {.temperature = 1, .top_k = 2});
  ASSERT_EQ(got.size(), 2U);
  EXPECT_NEAR(got.at(1), 0.25, 0.015);
  EXPECT_NEAR(got.at(3), 0.75, 0.015);
  EXPECT_EQ(draw_shares(scores_of({1, 1, 1}), {.temperature = 1, .top_k = 2}).size(), 2U)
      << "exactly two of three equals";
  EXPECT_EQ(draw_shares(scores_of({1, 1, 1}), {.temperature = 1, .top_k = 9}).size(), 3U);
}

TEST(SampleToken, TopPDrawsAmongTheFewestThatHaveThePart) {
  const auto logits = scores_of({std::log(1.0), std::log(5.0), std::log(3.0), std::log(1.0)});
  for (const auto& [part, count] : {std::pair{0.45, 1U}, {0.7, 2U}, {0.85, 3U}, {0.95, 4U}, {1.0, 4U}})
    EXPECT_EQ(draw_shares(logits, {.temperature = 1, .top_p = part}).size(), count) << part;
  const auto got = draw_shares(logits, {.temperature = 1, .top_p = 0.7});
  EXPECT_NEAR(got.at(1), 5. / 8, 0.015);
  EXPECT_NEAR(got.at(2), 3. / 8, 0.015);
  // Of the best two, the first has more than 0.6 of what they have together.
  EXPECT_EQ(draw_shares(logits, {.temperature = 1, .top_k = 2, .top_p = 0.6}).size(), 1U);
}

TEST(SampleToken, DependsOnSeedAndDrawAlone) {
  const auto logits = at::zeros({1000});
  const auto sequence = [&](std::uint64_t seed) {
    TokenIds ids;
    for (std::int64_t draw = 0; draw < 20; ++draw)
      ids.push_back(sample_token(logits, {.temperature = 1, .seed = seed}, draw));
    return ids;
  };
  EXPECT_EQ(sequence(3), sequence(3));
  EXPECT_NE(sequence(3), sequence(4));
}

TEST(SampleToken, RefusesScoresThatAreNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& values : {std::vector<double>{0, std::nan("")}, {-infinity, -infinity}, {0, infinity}})
    for (const double temperature : {0.0, 1.0})
      EXPECT_THROW((void)sample_token(scores_of(values), {.temperature = temperature}, 0), NonFiniteError);
}

/// Predicts the sum of what it sees, modulo 10, and records that.
struct SumModel {
  std::vector<TokenIds> seen{};
  LanguageModel model(std::int64_t positions = 0) {
    return {.next_logits =
                [this](const Texts& texts) {
                  auto logits = at::zeros({static_cast<std::int64_t>(texts.size()), 10});
                  for (std::size_t i = 0; i < texts.size(); ++i) {
                    seen.push_back(texts[i]);
                    const auto sum = std::accumulate(texts[i].begin(), texts[i].end(), std::int64_t{0});
                    logits[static_cast<std::int64_t>(i)][sum % 10] = 1;
                  }
                  return logits;
                },
            .vocabulary = 10,
            .positions = positions};
  }
};

TEST(Generate, EachTokenFollowsTheOnesBefore) {
  SumModel sum;
  EXPECT_EQ(generate(sum.model(), {{1, 2}}, {.tokens = 4}), (Texts{{3, 6, 2, 4}}));
  EXPECT_EQ(sum.seen.back(), (TokenIds{1, 2, 3, 6, 2}));
}

TEST(Generate, TheModelSeesTheLastTokensThatItHasPositionsFor) {
  SumModel sum;
  EXPECT_EQ(generate(sum.model(2), {{9, 1, 2}}, {.tokens = 3}), (Texts{{3, 5, 8}}));
  EXPECT_EQ(sum.seen, (std::vector<TokenIds>{{1, 2}, {2, 3}, {3, 5}}));
}

TEST(Generate, StopsAtTheEndTokenAndKeepsToTheTokenizersIds) {
  SumModel sum;
  EXPECT_EQ(generate(sum.model(), {{1, 2}}, {.tokens = 9, .ends = {{7}, {2}}}), (Texts{{3, 6}}));
  // 6 is no id of this tokenizer: of the others, which have equal scores, the first is taken.
  EXPECT_EQ(generate(sum.model(), {{1, 2}}, {.tokens = 2, .vocabulary = 5}), (Texts{{3, 0}}));
}

TEST(Generate, SeveralPromptsAreContinuedAsEachAlone) {
  const Texts prompts{{1, 2}, {5}, {4, 4, 4}, {0}, {9, 9}};
  const GenerateOptions options{.tokens = 6, .sampling = {.temperature = 1, .seed = 3}, .ends = {{2}}};
  SumModel all;
  const auto made = generate(all.model(), prompts, options);
  ASSERT_EQ(made.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    SumModel alone;
    EXPECT_EQ(made[i], generate(alone.model(), {prompts[i]}, options).front()) << "prompt " << i;
  }
}

TEST(Generate, RefusesPromptsThatTheModelCannotRead) {
  SumModel sum;
  for (const auto& [prompt, error] : std::vector<std::pair<TokenIds, std::string>>{
           {{}, "the prompt has no tokens; give one with some text"},
           {{1, 10},
            "the prompt has the token id 10, but the model's vocabulary has 10 tokens (0 to 9); use the tokenizer that "
            "the model was trained with"},
           {{-1}, "the prompt has the token id -1"}}) {
    try {
      generate(sum.model(), {prompt}, {});
      ADD_FAILURE() << "accepted";
    } catch (const DataError& refused) {
      EXPECT_EQ(std::string(refused.what()).substr(0, error.size()), error);
    }
  }
  EXPECT_TRUE(sum.seen.empty());
}

}  // namespace
}  // namespace trireme::train
