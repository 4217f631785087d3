// Text models against Hugging Face's (tests/golden/make_*.py): every tensor's name, logits, loss and gradient in
// float64, and the round trip of config.json.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>

#include "core/checkpoint/formats/safetensors.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/layers/rotary.h"
#include "core/nn/parameters.h"
#include "models/llama/kind.h"
#include "tests/unit/checkpoint/folder.h"
#include "trireme.h"

namespace trireme {
namespace {

constexpr double kGoldenBound = 1e-10;

double size(const at::Tensor& t) { return t.norm().item<double>(); }

struct Golden {
  const char *folder, *model, *task;
  std::int64_t classes = 0;  ///< 0: the task's outputs are the model's own
};
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.folder; }

class GoldenModels : public testing::TestWithParam<Golden> {
 protected:
  GoldenModels() : weights(path("model.safetensors")), expected(path("expected.safetensors")) {
    const auto kinds = builtin_kinds();
    kind = kinds.models.at(GetParam().model);
    std::ifstream(path("config.json")) >> config;
    options = kind->default_options();
    EXPECT_TRUE(kind->from_hf(options.get(), config, "config.json"));
    const auto labels = expected.info("labels").shape;
    spec.inputs = {{"input_ids", at::kLong, {-1}}};
    spec.targets = {{nn::kLabels, at::kLong, {labels.begin() + 1, labels.end()}}};
    if (!spec.targets[0].shape.empty()) spec.targets[0].shape = {-1};
    spec.classes = GetParam().classes;
    kind->resolve(options.get(), spec);
    task = kinds.tasks.at(GetParam().task).make(spec);
  }
  static std::string path(const std::string& file) {
    return fmt::format("{}/tests/golden/{}/{}", TRIREME_SOURCE_DIR, GetParam().folder, file);
  }

  checkpoint::SafeTensors weights, expected;
  std::shared_ptr<nn::ModelKind> kind;
  nlohmann::json config;
  std::shared_ptr<void> options;
  nn::DataSpec spec;
  std::shared_ptr<const Task> task;
};

TEST_P(GoldenModels, LogitsLossAndGradientsEqualHuggingFace) {
  for (const bool recompute : {false, true}) {
    const auto model = kind->make(options.get());
    nn::materialize(*model, 1, at::kDouble, at::kCPU);
    auto parameters = nn::parameters(*model);
    ASSERT_EQ(parameters.size(), weights.tensors().size());
    for (auto& p : parameters) p.value.data().copy_(weights.read(p.name, p.placement));
    data::Batch batch;
    for (const auto& [name, entry] : expected.tensors())
      if (name != "labels" && name != "logits" && name != "loss" && !name.starts_with("grad."))
        batch.inputs.set(name, expected.read(name));
    batch.targets.set(nn::kLabels, expected.read("labels"));
    const auto ids = batch.inputs["input_ids"];
    const nn::Context context{.training = true, .tokens = ids.size(1), .side = model->side_inputs(batch.inputs)};
    const auto run = recompute ? nn::RunBlock(nn::recompute) : nn::RunBlock();
    const auto outputs = model->forward(model->first_inputs(batch.inputs), context, run);
    auto weight = task->weight(batch);
    if (!weight.defined()) weight = at::scalar_tensor(ids.size(0), at::kDouble);
    const auto loss = task->loss(outputs, batch, {}) / weight;
    loss.backward();
    const auto logits = expected.read("logits");
    const auto counts = batch.inputs["attention_mask"].to(at::kDouble);
    // The outputs of padding tokens are not compared.
    const auto off = logits.dim() == 3 ? (outputs[0] - logits) * counts.unsqueeze(2) : outputs[0] - logits;
    EXPECT_LE(size(off), kGoldenBound * size(logits));
    EXPECT_NEAR(loss.item<double>(), expected.read("loss").item<double>(), kGoldenBound);
    double squares = 0;
    for (const auto& p : parameters) squares += std::pow(size(expected.read("grad." + p.name)), 2);
    for (const auto& p : parameters) {
      const auto want = expected.read("grad." + p.name, p.placement);
      ASSERT_TRUE(p.value.grad().defined()) << p.name;
      EXPECT_LE(size(p.value.grad() - want), kGoldenBound * std::max(size(want), 1e-6 * std::sqrt(squares))) << p.name;
    }
  }
}

TEST_P(GoldenModels, ConfigJsonRoundTrip) {
  const auto written = kind->to_hf(options.get());
  EXPECT_EQ(written.at("architectures"), config.at("architectures"));
  for (const auto& [key, value] : written.items())
    if (config.contains(key)) {
      EXPECT_EQ(value, config[key]) << key;
    }
  const auto again = kind->default_options();
  EXPECT_TRUE(kind->from_hf(again.get(), written, "config.json"));
  kind->resolve(again.get(), spec);
  for (const auto& field : kind->fields().fields)
    EXPECT_EQ(field.get(again.get()), field.get(options.get())) << field.key;
  EXPECT_FALSE(kind->from_hf(again.get(), {{"model_type", "other"}}, "config.json"));
}

// What config.json says of rotary positions, in the ways of several versions of transformers: cosines and sines in
// float64, what is written, and that it is read again.
TEST(RotaryPositions, EqualHuggingFaces) {
  const auto folder = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/";
  const checkpoint::SafeTensors expected(folder + "rope.safetensors");
  nlohmann::json cases;
  std::ifstream(folder + "rope.json") >> cases;
  const auto kind = builtin_kinds().models.at("llama");
  constexpr std::int64_t kTokens = 24;
  const nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {10}}}, .targets = {{nn::kLabels, at::kLong, {10}}}};
  for (const auto& [name, values] : cases.items()) {
    SCOPED_TRACE(name);
    auto config = values.at("config");
    for (int round = 0; round < 2; ++round) {
      models::llama::Options options;
      ASSERT_TRUE(kind->from_hf(&options, config, "config.json"));
      kind->resolve(&options, spec);
      const nn::Rotary rotary({.head_size = *options.head_size, .theta = *options.rope_theta, .scaling = options.rope});
      const auto x = at::zeros({1, 1, kTokens, *options.head_size}, at::kDouble);
      const auto got = rotary.angles(x, 0, {.tokens = kTokens});
      EXPECT_LE(size(got.cos - expected.read(name + ".cos")), kGoldenBound);
      EXPECT_LE(size(got.sin - expected.read(name + ".sin")), kGoldenBound);
      // A sequence rank has some of the sample's tokens.
      const auto late = rotary.angles(x.narrow(2, 0, 8), kTokens - 8, {.tokens = kTokens});
      EXPECT_LE(size(late.cos - expected.read(name + ".cos").narrow(0, kTokens - 8, 8)), kGoldenBound);
      config = kind->to_hf(&options);
      auto written = values.at("written");
      written.erase("type");
      EXPECT_EQ(config.at("rope_parameters"), written);
    }
  }
}

// Beyond max_positions the angles depend on the longest sample of a batch: it must be the same for all batches.
TEST(RotaryPositions, DynamicOnesNeedSamplesOfOneLength) {
  const auto kind = builtin_kinds().models.at("llama");
  const nlohmann::json config{{"model_type", "llama"},
                              {"hidden_size", 64},
                              {"num_attention_heads", 4},
                              {"max_position_embeddings", 10},
                              {"rope_scaling", {{"type", "dynamic"}, {"factor", 3.0}}}};
  const auto longest = [&](std::vector<nn::SampleTensor> inputs, std::optional<std::int64_t> of_user = {}) {
    models::llama::Options options;
    options.max_positions = of_user;
    EXPECT_TRUE(kind->from_hf(&options, config, "config.json"));
    kind->resolve(&options, {.inputs = std::move(inputs), .targets = {{nn::kLabels, at::kLong, {-1}}}});
    return options.longest;
  };
  EXPECT_EQ(longest({{"input_ids", at::kLong, {30}}}), 30);
  EXPECT_THROW(longest({{"input_ids", at::kLong, {31}}}), ConfigError);
  EXPECT_EQ(longest({{"input_ids", at::kLong, {-1}}}), 10);
  EXPECT_THROW(longest({{"input_ids", at::kLong, {30}}, {"position_ids", at::kLong, {30}}}), ConfigError);
  EXPECT_THROW(longest({{"input_ids", at::kLong, {30}}}, 30), ConfigError);
}

TEST(Positions, OfTheLongestSampleAreCheckedBeforeTheFirstStep) {
  const auto kind = builtin_kinds().models.at("bert");
  nn::DataSpec spec{
      .inputs = {{"input_ids", at::kLong, {-1}}}, .targets = {{nn::kLabels, at::kLong, {}}}, .classes = 2};
  spec.longest_key = "data.max_tokens";
  const auto problem = [&](std::int64_t longest) -> std::string {
    const auto options = kind->default_options();
    EXPECT_TRUE(kind->from_hf(options.get(), {{"model_type", "bert"}, {"max_position_embeddings", 64}}, "config.json"));
    spec.longest = longest;
    try {
      kind->resolve(options.get(), spec);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem(64), "");
  EXPECT_EQ(problem(102),
            "data.max_tokens: the longest sample has 102 tokens, but the model has 64 positions; set it to at most 64, "
            "or, for a model with new weights, raise model.max_positions");
}

// transformers 5 uses both tensors then, although config.json ties them.
TEST(TiedLlama, AFileWithAnotherHead) {
  const auto folder = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/llama_tied/";
  const checkpoint::SafeTensors golden(folder + "model.safetensors");
  const auto kind = builtin_kinds().models.at("llama");
  nlohmann::json config;
  std::ifstream(folder + "config.json") >> config;
  nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {-1}}}, .targets = {{nn::kLabels, at::kLong, {-1}}}};
  const auto embedding = golden.read("model.embed_tokens.weight");
  const checkpoint::TestFolder written;
  std::vector<checkpoint::NamedValue> values{{"lm_head.weight", embedding + 1}};
  for (const auto& name : golden.names()) values.push_back({name, golden.read(name)});
  checkpoint::write_safetensors(written / "model.safetensors", values);
  const auto load = [&](std::optional<bool> tied) {
    models::llama::Options options;
    options.tied = tied;
    EXPECT_TRUE(kind->from_hf(&options, config, "config.json"));
    kind->resolve(&options, spec);
    const auto model = kind->make(&options);
    nn::materialize(*model, 1, at::kDouble, at::kCPU);
    checkpoint::load_weights(written.path(), nn::parameters(*model), "", Log(1), checkpoint::other_tensors(*model));
    std::map<std::string, at::Tensor> out;
    for (const auto& p : nn::parameters(*model)) out[p.name] = p.value.detach();
    EXPECT_EQ(kind->to_hf(&options).at("tie_word_embeddings"), *options.tied);
    return out;
  };
  const auto both = load(false);
  EXPECT_TRUE(at::equal(both.at("lm_head.weight"), embedding + 1));
  EXPECT_TRUE(at::equal(both.at("model.embed_tokens.weight"), embedding));
  for (const std::optional<bool> tied : {std::optional<bool>(), std::optional(true)}) try {
      load(tied);
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()),
                written.path() +
                    "/model.safetensors: the tensors \"lm_head.weight\" and \"model.embed_tokens.weight\" "
                    "differ, but this model uses one for both; set model.tied = false to use both");
    }
}

INSTANTIATE_TEST_SUITE_P(Folders, GoldenModels,
                         testing::Values(Golden{"bert_masked_lm", "bert", "masked_lm"},
                                         Golden{"bert_sequence", "bert", "classification", 4},
                                         Golden{"bert_token", "bert", "classification", 4},
                                         Golden{"gpt2", "gpt2", "causal_lm"}, Golden{"qwen3", "qwen3", "causal_lm"},
                                         Golden{"llama_untied", "llama", "causal_lm"},
                                         Golden{"llama_tied", "llama", "causal_lm"}),
                         [](const auto& value) { return value.param.folder; });

}  // namespace
}  // namespace trireme
