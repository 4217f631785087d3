// The keys of transformers' configuration classes (tests/golden/make/make_config_keys.py) against what the models do
// with each: a key that is in no list fails; those in a list have its effect. What keys that few files have do in a
// model.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>

#include "core/base/safetensors_file.h"
#include "core/nn/hf_config.h"
#include "core/nn/parameters.h"
#include "models/bert/kind.h"
#include "models/vit/kind.h"
#include "trireme.h"

namespace trireme::models {
namespace {

using nlohmann::json;

json read_json_file(const std::string& name) {
  json out;
  std::ifstream(std::string(TRIREME_SOURCE_DIR) + "/tests/golden/" + name) >> out;
  return out;
}

struct ConfigClass {
  const char *name, *model;
  /// Other values than the default, where one of its type does not do, and what an export has in their place.
  std::map<std::string, json> others;
  std::map<std::string, json> exported;
};
void PrintTo(const ConfigClass& value, std::ostream* out) { *out << value.name; }

/// A value of the same type that differs.
json another(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return 2 * value.get<std::int64_t>() + 2 * (value == 0);
  if (value.is_number()) return value == 0.0 ? 0.25 : value.get<double>() / 2;
  if (value.is_string()) return "relu";
  return value.is_null() ? json(8) : json{{"other", 1}};
}

class ConfigKeys : public testing::TestWithParam<ConfigClass> {
 protected:
  ConfigKeys() : kind(builtin_kinds().models.at(GetParam().model)) {
    spec.inputs = {kind->fields().choice == "vit" ? nn::SampleTensor{"pixel_values", at::kFloat, {3, 224, 224}}
                                                  : nn::SampleTensor{"input_ids", at::kLong, {-1}}};
    spec.targets = {{nn::kLabels, at::kLong, {}}};
    const bool causal = kind->fields().choice != "bert" && kind->fields().choice != "vit";
    if (causal) spec.targets[0].shape = {-1};
    spec.classes = causal ? 0 : 2;
    for (const auto& field : kind->fields().fields)
      if (const auto& key = nn::stored_key(field); !key.empty()) keys.used[key] = nn::as_json(field.rules.implied);
  }
  std::shared_ptr<void> read(const json& values) const {
    auto config = values;
    config["model_type"] = kind->fields().choice;
    auto options = kind->default_options();
    EXPECT_TRUE(kind->from_hf(options.get(), config, "config.json"));
    return options;
  }
  /// The config.json that is written for a model of this one.
  [[nodiscard]] json exported(const json& values) const {
    const auto options = read(values);
    kind->resolve(options.get(), spec);
    return kind->to_hf(options.get());
  }
  static std::string refusal(const std::function<void()>& body) {
    try {
      body();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }

  std::shared_ptr<nn::ModelKind> kind;
  nn::DataSpec spec;
  nn::HfKeys keys = kind->hf_keys();  ///< with those of the field table
};

TEST_P(ConfigKeys, EachOneIsInAList) {
  std::set<std::string> of_class;
  const auto& common = nn::common_hf_keys();
  const auto in = [](const std::vector<std::string>& list, const std::string& key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  const auto versions = read_json_file("config_keys.json");
  for (const auto& [version, classes] : versions.items()) {
    const auto& known = classes.at(GetParam().name);
    for (const auto& [key, value] : known.at("keys").items()) {
      SCOPED_TRACE(version + " " + key);
      of_class.insert(key);
      const auto lists = keys.used.count(key) + keys.fixed.count(key) + std::size_t{in(keys.no_effect, key)};
      EXPECT_LE(lists, 1U);
      EXPECT_TRUE(lists == 1 || common.fixed.contains(key) || in(common.no_effect, key))
          << "no list of " << GetParam().model << " has this key: say what it does";
      if (keys.used.contains(key) && !keys.used[key].is_null()) {
        EXPECT_EQ(keys.used[key], value) << "implied";
      }
      if (keys.fixed.contains(key)) {
        EXPECT_EQ(keys.fixed[key], value);
      }
    }
    for (const auto& [alias, key] : known.at("aliases").items()) {
      const auto other = another(known.at("keys").at(key.get<std::string>()));
      EXPECT_EQ(exported({{alias, other}}).at(key.get<std::string>()), other) << alias;
      EXPECT_NE(refusal([&, &name = alias] {
                  read({{name, other}, {key.get<std::string>(), 12345}});
                }).find("names of one number"),
                std::string::npos)
          << alias;
    }
  }
  for (const auto* list : {&keys.used, &keys.fixed})
    for (const auto& [key, value] : list->items())
      EXPECT_TRUE(of_class.count(key) != 0 || key == "partial_rotary_factor") << key << " is no key of the class";
  for (const auto& key : keys.no_effect) EXPECT_EQ(of_class.count(key), 1U) << key << " is no key of the class";
}

TEST_P(ConfigKeys, UsedOnesChangeTheModelAndItsExport) {
  const auto before = exported(json::object());
  for (const auto& [key, implied] : keys.used.items()) {
    SCOPED_TRACE(key);
    const auto& others = GetParam().others;
    const auto given = others.find(key);
    const auto other = given == others.end() ? another(implied) : given->second;
    const auto& exports = GetParam().exported;
    if (const auto place = exports.find(key); place == exports.end()) {
      const auto after = exported({{key, other}});
      EXPECT_NE(after, before);
      EXPECT_EQ(after.value(key, json("missing")), other);
    } else if (!place->second.is_null()) {
      const auto after = exported({{key, other}});
      EXPECT_NE(after, before);
      EXPECT_EQ(after, [&] {
        auto want = before;
        want.update(place->second);
        return want;
      }());
    }
  }
}

TEST_P(ConfigKeys, FixedOnesAreRefusedByName) {
  for (const auto* list : {&std::as_const(keys.fixed), &nn::common_hf_keys().fixed})
    for (const auto& [key, value] : list->items()) {
      if (list != &keys.fixed && keys.fixed.contains(key)) continue;
      EXPECT_NO_THROW(read({{key, value}})) << key;
      const auto other = another(value);
      EXPECT_EQ(
          refusal([&, &name = key] {
            read({{name, other}});
          }),
          fmt::format("model.weights: config.json has {} = {}; only {} is supported", key, other.dump(), value.dump()));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Classes, ConfigKeys,
    testing::Values(
        ConfigClass{"BertConfig", "bert", {{"classifier_dropout", 0.4}}, {}}, ConfigClass{"GPT2Config", "gpt2", {}, {}},
        ConfigClass{"LlamaConfig",
                    "llama",
                    {{"head_dim", 64},
                     {"rope_theta", 2e4},
                     {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 2e4}}},
                     {"rope_scaling", {{"type", "default"}, {"rope_theta", 2e4}}}},
                    {{"rope_theta", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}},
                     {"rope_scaling", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}}}},
        ConfigClass{
            "Qwen3Config",
            "qwen3",
            {{"head_dim", 64},
             {"num_key_value_heads", 8},
             {"rope_theta", 2e4},
             {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 2e4}}},
             {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
            {{"rope_theta", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}},
             {"rope_scaling", {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e4}}}}},
             {"layer_types", nullptr}}},
        // The data decide what is exported: see AVitsImagesAreThoseOfTheData.
        ConfigClass{"ViTConfig", "vit", {}, {{"image_size", nullptr}, {"num_channels", nullptr}}}),
    [](const auto& value) { return value.param.model; });

TEST(ConfigKeysOf, AVitsImagesAreThoseOfTheData) {
  const auto kind = builtin_kinds().models.at("vit");
  vit::Options options;
  EXPECT_TRUE(
      kind->from_hf(&options, {{"model_type", "vit"}, {"image_size", {32, 48}}, {"num_channels", 1}}, "config.json"));
  EXPECT_EQ(options.weights_image_size->width, 48);
  nn::DataSpec spec{.inputs = {{"pixel_values", at::kFloat, {3, 64, 64}}}, .classes = 2};
  spec.targets = {{nn::kLabels, at::kLong, {}}};
  EXPECT_THROW(kind->resolve(&options, spec), ConfigError);
}

TEST(ConfigKeysOf, TransformersResNetIsRefused) {
  const auto kind = builtin_kinds().models.at("resnet");
  const auto options = kind->default_options();
  const auto versions = read_json_file("config_keys.json");
  for (const auto& [version, classes] : versions.items())
    EXPECT_THROW(kind->from_hf(options.get(), classes.at("ResNetConfig").at("keys"), "config.json"), ConfigError);
}

TEST(ConfigKeysOf, ValuesThatNoModelHasAreRefused) {
  const struct {
    const char* model;
    json values;
    const char* says;
  } rows[] = {
      {"llama",
       {{"num_attention_heads", 4.5}},
       "num_attention_heads = 4.5; it must be an integer, at least 1 and at most"},
      {"llama", {{"vocab_size", 256.4}}, "vocab_size = 256.4; it must be an integer"},
      {"llama", {{"hidden_size", 1e30}}, "hidden_size = 1e+30; it must be an integer"},
      {"llama",
       {{"num_hidden_layers", 0}},
       "num_hidden_layers = 0; it must be an integer, at least 1 and at most 10000"},
      {"llama", {{"num_hidden_layers", 4294967298}}, "num_hidden_layers = 4294967298; it must be"},
      {"llama", {{"num_attention_heads", 0}}, "num_attention_heads = 0; it must be"},
      {"llama", {{"num_key_value_heads", 0}}, "num_key_value_heads = 0; it must be"},
      {"llama", {{"head_dim", -2}}, "head_dim = -2; it must be"},
      {"llama", {{"intermediate_size", -1}}, "intermediate_size = -1; it must be"},
      {"llama", {{"rms_norm_eps", 0}}, "rms_norm_eps = 0; it must be a number, above 0"},
      {"llama", {{"rope_theta", -1.0}}, "rope_theta = -1.0; it must be a number, above 0"},
      {"llama", {{"rope_parameters", {{"rope_theta", "x"}}}}, "rope_theta = \"x\"; it must be a number, above 0"},
      {"llama", {{"attention_dropout", 1.0}}, "attention_dropout = 1.0; it must be a number, at least 0 and below 1"},
      {"llama", {{"attention_bias", 1}}, "attention_bias = 1; it must be true or false"},
      {"llama", {{"pad_token_id", 1.5}}, "pad_token_id = 1.5; it must be an integer"},
      {"llama", {{"rope_scaling", "linear"}}, "rope_scaling = \"linear\"; it must be one object for all layers"},
      {"llama", {{"rope_scaling", {1, 2}}}, "rope_scaling = [1,2]; it must be one object"},
      {"llama", {{"rope_parameters", json::array()}}, "rope_parameters = []; it must be one object"},
      {"llama", {{"rope_parameters", "x"}}, "rope_parameters = \"x\"; it must be one object"},
      {"llama",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "rope_parameters = {\"full_attention\":{\"rope_type\":\"default\"}}; it must be one object"},
      {"llama",
       {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}},
       "partial_rotary_factor = 0.5; only 1.0 is supported"},
      {"llama",
       {{"rope_scaling", {{"type", "longrope"}}}},
       "rotary positions of the type \"longrope\"; only default, linear, dynamic, llama3, yarn are supported"},
      {"llama",
       {{"rope_scaling", {{"type", "dynamic"}}}},
       "rotary positions of the type \"dynamic\" without factor, which they need"},
      {"llama",
       {{"rope_scaling", {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}}},
       "rotary positions of the type \"llama3\" without low_freq_factor and high_freq_factor"},
      {"llama",
       {{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}},
       "factor = 0.5; it must be a number, at least 1"},
      {"llama",
       {{"rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}}},
       "truncate = 1; it must be true or false"},
      {"qwen3",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       "layer_types with \"sliding_attention\"; only \"full_attention\" is supported"},
      {"gpt2", {{"n_head", 0}}, "n_head = 0; it must be"},
      {"gpt2", {{"n_embd", nullptr}}, "n_embd = null; it must be an integer"},
      {"bert", {{"vocab_size", nullptr}}, "vocab_size = null; it must be an integer"},
      {"gpt2", {{"n_inner", -3}}, "n_inner = -3; it must be"},
      {"gpt2", {{"num_hidden_layers", -1}}, "n_layer = -1; it must be"},
      {"gpt2", {{"layer_norm_epsilon", -1e-5}}, "layer_norm_epsilon = -1e-05; it must be a number, above 0"},
      {"bert", {{"max_position_embeddings", -1}}, "max_position_embeddings = -1; it must be"},
      {"bert", {{"type_vocab_size", 0}}, "type_vocab_size = 0; it must be"},
      {"bert", {{"classifier_dropout", 2}}, "classifier_dropout = 2; it must be a number, at least 0 and below 1"},
      {"vit", {{"patch_size", 0}}, "patch_size = 0; it must be"},
      {"vit", {{"num_channels", 0}}, "num_channels = 0; it must be an integer, at least 1 and at most 2147483647"},
      {"vit", {{"image_size", 1e20}}, "image_size = 1e+20; it must be an integer, at least 1"},
      {"vit", {{"num_hidden_layers", 2.5}}, "num_hidden_layers = 2.5; it must be an integer"},
      {"resnet", {{"width", 0.5}}, "width = 0.5; it must be an integer, at least 1"},
      {"resnet", {{"num_channels", -3}}, "num_channels = -3; it must be"},
  };
  for (const auto& [model, values, says] : rows) {
    SCOPED_TRACE(values.dump());
    const auto kind = builtin_kinds().models.at(model);
    auto config = values;
    config.update({{"model_type", model}});
    if (model == std::string("resnet")) config.update({{"architecture", "resnet18"}});
    try {
      kind->from_hf(kind->default_options().get(), config, "a/config.json");
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(std::string("model.weights: a/config.json has ") + says))
          << error.what();
    }
  }
}

// As in Python, where null is None.
TEST(ConfigKeysOf, NullIsWhatTheClassMakesOfIt) {
  const struct {
    const char* model;
    json values;
    const char* key;
    FieldValue is;
  } rows[] = {
      {"qwen3", {{"tie_word_embeddings", nullptr}}, "tied", false},
      {"qwen3", {{"num_attention_heads", 8}, {"num_key_value_heads", nullptr}}, "num_key_value_heads", std::int64_t{8}},
      {"qwen3", {{"num_attention_heads", 8}}, "num_key_value_heads", std::int64_t{32}},
      {"llama", {{"rope_parameters", json::object()}}, "rope_theta", 1e4},
      {"llama", {{"rope_parameters", nullptr}, {"mlp_bias", nullptr}}, "mlp_bias", false},
      {"vit", {{"qkv_bias", nullptr}}, "qkv_bias", false},
  };
  for (const auto& [model, values, key, is] : rows) {
    SCOPED_TRACE(model + values.dump());
    const auto kind = builtin_kinds().models.at(model);
    const auto options = kind->default_options();
    auto config = values;
    config["model_type"] = model;
    EXPECT_TRUE(kind->from_hf(options.get(), config, "config.json"));
    EXPECT_EQ(kind->fields().find(key)->get(options.get()), is);
  }
}

/// A program's own kind of model, whose config.json is read by the rules of its fields.
struct OwnOptions {
  std::int64_t width = 4;
  double dropout = 0;
  std::vector<std::int64_t> sizes{};
};
const Fields<OwnOptions>& own_fields() {
  static const auto table = Fields<OwnOptions>("model", "A model.")
                                .with("name", "own")
                                .add("width", &OwnOptions::width, "Its width.", {.min = 1})
                                .add("dropout", &OwnOptions::dropout, "Its dropout.", {.min = 0, .below = 1})
                                .add("sizes", &OwnOptions::sizes, "Its sizes.", {.min = 1});
  return table;
}
class OwnKind final : public nn::ModelKindOf<OwnOptions> {
 public:
  OwnKind() : ModelKindOf(own_fields()) {}
  [[nodiscard]] std::string default_task(const nn::DataSpec& /*data*/) const override { return "classification"; }

 protected:
  void resolve_for(OwnOptions& /*options*/, const nn::DataSpec& /*data*/) const override {}
  [[nodiscard]] std::unique_ptr<nn::Model> make_model(const OwnOptions& /*options*/) const override { return nullptr; }
};

TEST(ConfigKeysOf, AnOwnModelAreReadByItsFields) {
  const auto problem = [](const json& values) -> std::string {
    OwnOptions options;
    json config{{"model_type", "own"}};
    config.update(values);
    try {
      OwnKind().from_hf(&options, config, "config.json");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem({{"width", 8}, {"dropout", 0}, {"sizes", {1, 2}}}), "");
  const std::string has = "model.weights: config.json has ";
  EXPECT_EQ(problem({{"width", 8.5}}), has + "width = 8.5; it must be an integer, at least 1");
  EXPECT_EQ(problem({{"width", 0}}), has + "width = 0; it must be an integer, at least 1");
  EXPECT_EQ(problem({{"dropout", 1.0}}), has + "dropout = 1.0; it must be a number, at least 0 and below 1");
  EXPECT_EQ(problem({{"sizes", {1, 2.5}}}), has + "sizes = [1,2.5]; it must be a list of integers, at least 1");
  EXPECT_EQ(problem({{"sizes", 3}}), has + "sizes = 3; it must be a list of integers, at least 1");
}

/// The golden folder's model with some of its config.json's keys changed, in float64.
struct ChangedModel {
  ChangedModel(const char* kind_name, const std::string& folder, const json& changes, std::int64_t classes)
      : kind(builtin_kinds().models.at(kind_name)), options(kind->default_options()) {
    auto config = read_json_file(folder + "/config.json");
    config.update(changes);
    EXPECT_TRUE(kind->from_hf(options.get(), config, "config.json"));
    spec.inputs = {{"input_ids", at::kLong, {-1}}};
    spec.targets = {{nn::kLabels, at::kLong, {}}};
    if (classes == 0) spec.targets[0].shape = {-1};
    spec.classes = classes;
    kind->resolve(options.get(), spec);
    model = kind->make(options.get());
    nn::materialize(*model, 1, at::kDouble, at::kCPU);
    ids = SafeTensorsFile(std::string(TRIREME_SOURCE_DIR) + "/tests/golden/" + folder + "/expected.safetensors")
              .read("input_ids");
  }
  [[nodiscard]] at::Tensor outputs(bool training) const {
    return model->forward(
        {ids}, {.training = training, .seed = 1, .sample_ids = at::arange(ids.size(0)), .tokens = ids.size(1)})[0];
  }
  std::shared_ptr<nn::ModelKind> kind;
  std::shared_ptr<void> options;
  nn::DataSpec spec;
  std::shared_ptr<nn::Model> model;
  at::Tensor ids;
};

TEST(ConfigKeysOf, TheClassifiersDropoutOfABert) {
  const auto drops = [](const json& changes) {
    const ChangedModel bert("bert", "bert_sequence", changes, 4);
    return !at::equal(bert.outputs(true), bert.outputs(false));
  };
  EXPECT_TRUE(drops({{"classifier_dropout", 0.5}}));
  EXPECT_FALSE(drops({{"classifier_dropout", 0.0}}));
  EXPECT_FALSE(drops({{"classifier_dropout", nullptr}})) << "the folder's hidden_dropout_prob is 0";

  // Null follows hidden_dropout_prob.
  bert::Options options;
  options.dropout = 0.25;
  const auto kind = builtin_kinds().models.at("bert");
  nn::DataSpec spec{.inputs = {{"input_ids", at::kLong, {-1}}}, .classes = 2};
  spec.targets = {{nn::kLabels, at::kLong, {}}};
  kind->resolve(&options, spec);
  EXPECT_EQ(options.classifier_dropout, 0.25);

  // Without a head for classes it is kept for the export, and refused in [model].
  const ChangedModel tokens("bert", "bert_masked_lm", {{"classifier_dropout", 0.5}}, 0);
  EXPECT_EQ(tokens.kind->to_hf(tokens.options.get()).at("classifier_dropout"), 0.5);
  EXPECT_NO_THROW(tokens.kind->resolve(tokens.options.get(), tokens.spec));
  bert::Options masked;
  masked.classifier_dropout = 0.5;
  EXPECT_THROW(kind->resolve(&masked, tokens.spec), ConfigError);
}

// As in torch.nn.Embedding(padding_idx=...): its row has no gradient.
TEST(ConfigKeysOf, ThePaddingOfALlama) {
  for (const std::int64_t id : {4, -3}) {
    const auto row_gradient = [&](const json& padding) {
      const ChangedModel llama("llama", "llama_untied", {{"pad_token_id", padding}}, 0);
      llama.outputs(true).square().sum().backward();
      const auto parameters = nn::parameters(*llama.model);
      const auto embedding = std::find_if(parameters.begin(), parameters.end(),
                                          [](const auto& p) { return p.name == "model.embed_tokens.weight"; });
      const auto row = id < 0 ? id + embedding->value.size(0) : id;
      EXPECT_TRUE((llama.ids == row).any().item<bool>()) << "the token must occur";
      return embedding->value.grad()[row].norm().item<double>();
    };
    EXPECT_EQ(row_gradient(id), 0);
    EXPECT_GT(row_gradient(nullptr), 0);
  }
  EXPECT_THROW(ChangedModel("llama", "llama_untied", {{"pad_token_id", 1000}}, 0), ConfigError);
}

}  // namespace
}  // namespace trireme::models
