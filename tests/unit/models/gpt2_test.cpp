// GPT-2: the sizes of its presets, what its config.json may say, its initial weights, and its files of weights, which
// hold some tensors transposed.
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/weights/weights.h"
#include "models/gpt2/kind.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::models::gpt2 {
namespace {

using checkpoint::NamedValue;
using checkpoint::SafeTensors;
using checkpoint::TestFolder;

const std::string kGolden = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/gpt2/";

nn::DataSpec sentences() {
  return {.inputs = {{"input_ids", at::kLong, {-1}}}, .targets = {{nn::kLabels, at::kLong, {-1}}}};
}

Options resolved(Options options = {}) {
  Kind().resolve(&options, sentences());
  return options;
}
/// The options with one that `key` names, as in [model].
Options with(const char* key, const FieldValue& value, Options options = {}) {
  fields().find(key)->set(&options, value);
  return options;
}

std::unique_ptr<nn::Model> make(const Options& options) { return Kind().make(&options); }

Options golden_options() {
  Options options;
  EXPECT_TRUE(Kind().from_hf(&options, checkpoint::read_beside_weights(kGolden), "config.json"));
  return resolved(options);
}

TEST(Gpt2, PresetsHaveTheNumbersOfParametersOfThePublishedModels) {
  const std::vector<std::pair<const char*, std::int64_t>> sizes{
      {"small", 124439808}, {"medium", 354823168}, {"large", 774030080}, {"xl", 1557611200}};
  for (const auto& [size, parameters] : sizes) {
    const auto made = make(resolved(with("size", std::string(size))));
    auto& model = *made;
    EXPECT_EQ(nn::parameter_count(model), parameters) << size;
  }
  EXPECT_EQ(*resolved().hidden_size, 768);
  EXPECT_EQ(*resolved(with("hidden_size", std::int64_t{24})).intermediate_size, 96);
}

TEST(Gpt2, ConfigJson) {
  const auto read = [](const nlohmann::json& values, Options options = {}) {
    nlohmann::json config{{"model_type", "gpt2"}};
    config.update(values);
    Kind().from_hf(&options, config, "config.json");
    return resolved(options);
  };
  // Missing keys have transformers' defaults, not those of a preset.
  const auto implied = read({{"n_embd", 32}, {"n_head", 4}});
  EXPECT_EQ(*implied.intermediate_size, 128);
  EXPECT_EQ(*implied.num_layers, 12);
  EXPECT_EQ(*read(nlohmann::json::object(), with("dropout", 0.3)).dropout, 0.3);
  const std::vector<std::pair<nlohmann::json, std::string>> refused{
      {{{"scale_attn_by_inverse_layer_idx", true}}, "scale_attn_by_inverse_layer_idx = true"},
      {{{"reorder_and_upcast_attn", true}}, "reorder_and_upcast_attn = true"},
      {{{"add_cross_attention", true}}, "add_cross_attention = true"},
      {{{"scale_attn_weights", false}}, "scale_attn_weights = false"},
      {{{"tie_word_embeddings", false}}, "tie_word_embeddings = false"},
      {{{"n_head", 7}}, "not a multiple"}};
  for (const auto& [values, says] : refused) {
    try {
      (void)read(values);
      ADD_FAILURE() << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

TEST(Gpt2, LayersBeforeResidualSumsStartSmaller) {
  const auto made = make(resolved(
      with("size", std::string("tiny"), with("num_layers", std::int64_t{8}, with("vocab_size", std::int64_t{50})))));
  auto& model = *made;
  nn::materialize(model, 3, at::kDouble, at::kCPU);
  for (const auto& p : nn::parameters(model)) {
    if (p.value.dim() != 2) continue;
    const double wanted = p.name.ends_with("c_proj.weight") ? 0.005 : 0.02;
    EXPECT_NEAR(p.value.std().item<double>(), wanted, 0.05 * wanted) << p.name;
  }
}

/// Loads weights into a new model, and expects the golden ones. Returns what was logged.
std::string load_golden(const std::string& file) {
  const auto made = make(golden_options());
  auto& model = *made;
  nn::materialize(model, 1, at::kDouble, at::kCPU);
  const auto parameters = nn::parameters(model);
  auto* lines = std::tmpfile();
  checkpoint::load_weights(file, parameters, "", Log(0, lines), checkpoint::other_tensors(model));
  const SafeTensors golden(kGolden + "model.safetensors");
  for (const auto& p : parameters)
    EXPECT_TRUE(at::equal(p.value.detach(), golden.read(p.name, p.placement))) << file << " " << p.name;
  std::string logged(static_cast<std::size_t>(std::ftell(lines)), '\0');
  std::rewind(lines);
  EXPECT_EQ(std::fread(logged.data(), 1, logged.size(), lines), logged.size());
  std::fclose(lines);
  return logged;
}

TEST(Gpt2, AnExportedFileIsHuggingFaces) {
  const auto made = make(golden_options());
  auto& model = *made;
  nn::materialize(model, 1, at::kDouble, at::kCPU);
  const auto parameters = nn::parameters(model);
  checkpoint::load_weights(kGolden, parameters, "", Log(1), checkpoint::other_tensors(model));
  const TestFolder folder;
  std::vector<shard::Slice> slices;
  for (const auto& p : parameters) slices.push_back({p.placement, p.value});
  checkpoint::save_weights(folder.path(), slices, {}, checkpoint::alone());
  const SafeTensors golden(kGolden + "model.safetensors"), written(folder / "model.safetensors");
  ASSERT_EQ(written.names(), golden.names());
  for (const auto& name : golden.names())
    EXPECT_TRUE(written.info(name).shape == golden.info(name).shape && at::equal(written.read(name), golden.read(name)))
        << name;
}

// What files of earlier versions have besides the model's tensors needs no warning. A head with values of its own is
// refused.
TEST(Gpt2, FilesOfEarlierVersions) {
  const SafeTensors golden(kGolden + "model.safetensors");
  const auto head = golden.read("transformer.wte.weight");
  for (const std::string prefix : {"", "transformer.", "module.transformer."})
    for (const bool same_head : {true, false}) {
      const TestFolder folder;
      std::vector<NamedValue> values;
      for (const auto& name : golden.names())
        values.push_back({prefix + name.substr(std::string("transformer.").size()), golden.read(name)});
      for (const auto* layer : {"h.0.", "h.1."}) {
        values.push_back({prefix + layer + "attn.bias", at::ones({1, 1, 9, 9}, at::kByte)});
        values.push_back({prefix + layer + "attn.masked_bias", at::zeros({}, at::kFloat)});
      }
      const std::string wrapper = prefix.starts_with("module.") ? "module." : "";
      values.push_back({wrapper + "lm_head.weight", same_head ? head : head + 1});
      checkpoint::write_safetensors(folder / "w.safetensors", values);
      if (same_head) {
        const auto logged = load_golden(folder / "w.safetensors");
        EXPECT_EQ(logged.find("not in this model"), std::string::npos) << logged;
        EXPECT_EQ(logged.find("lm_head"), std::string::npos) << logged;
        continue;
      }
      try {
        load_golden(folder / "w.safetensors");
        ADD_FAILURE() << prefix;
      } catch (const ConfigError& error) {
        const std::string says = error.what();
        EXPECT_NE(says.find(fmt::format("the tensors \"{}lm_head.weight\" and \"{}wte.weight\" differ, but this model "
                                        "uses one for both; remove the first from the file",
                                        wrapper, prefix)),
                  std::string::npos)
            << says;
      }
    }
}

}  // namespace
}  // namespace trireme::models::gpt2
