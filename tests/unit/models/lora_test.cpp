// Adapters against PEFT's (tests/golden/make/make_lora.py): outputs, loss, gradients and merged weights in float64, and
// the files in both directions. What add_lora() changes in a model, and what it refuses.
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

#include "core/base/safetensors_file.h"
#include "core/nn/autograd/recompute.h"
#include "core/nn/parameters.h"
#include "tests/unit/checkpoint/folder.h"
#include "trireme.h"

namespace trireme {
namespace {

constexpr double kAdapterBound = 1e-10;
const std::string kGoldenFolder = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/";

struct GoldenAdapter {
  const char *folder, *base, *model, *task;
  std::int64_t classes;
  nn::LoraOptions options;
  std::size_t layers;
};
void PrintTo(const GoldenAdapter& golden, std::ostream* out) { *out << golden.folder; }

double norm_of(const at::Tensor& t) { return t.norm().item<double>(); }

/// A model of the folder's config.json, without memory.
struct BaseModel {
  BaseModel(const char* base, const char* name, std::int64_t classes, const at::Tensor& labels,
            const nlohmann::json& changes = nlohmann::json::object()) {
    kind = builtin_kinds().models.at(name);
    nlohmann::json config;
    std::ifstream(kGoldenFolder + base + "/config.json") >> config;
    config.update(changes);
    const auto options = kind->default_options();
    EXPECT_TRUE(kind->from_hf(options.get(), config, "config.json"));
    spec.inputs = {{"input_ids", at::kLong, {-1}}};
    if (name == std::string("vit")) spec.inputs = {{"pixel_values", at::kFloat, {3, 16, 16}}};
    spec.targets = {{nn::kLabels, at::kLong, {}}};
    if (labels.dim() > 1) spec.targets[0].shape = {-1};
    spec.classes = classes;
    kind->resolve(options.get(), spec);
    model = kind->make(options.get());
  }
  std::shared_ptr<nn::ModelKind> kind;
  nn::DataSpec spec;
  std::shared_ptr<nn::Model> model;
};

BaseModel small_bert() {
  const SafeTensorsFile data(kGoldenFolder + "bert_sequence/expected.safetensors");
  return {"bert_sequence", "bert", 4, data.read("labels")};
}

class GoldenAdapters : public testing::TestWithParam<GoldenAdapter> {
 protected:
  GoldenAdapters()
      : base(kGoldenFolder + GetParam().base),
        adapters(kGoldenFolder + GetParam().folder),
        data(base + "/expected.safetensors"),
        expected(adapters + "/expected.safetensors"),
        of(GetParam().base, GetParam().model, GetParam().classes, data.read("labels")) {
    nn::add_lora(*of.model, GetParam().options);
    nn::materialize(*of.model, 1, at::kDouble, at::kCPU);
    parameters = nn::parameters(*of.model);
    checkpoint::load_weights_and_adapters(base, adapters, parameters, "", Log(1), checkpoint::other_tensors(*of.model));
  }
  std::vector<shard::Slice> state() const {
    std::vector<shard::Slice> out;
    for (const auto& p : parameters) out.push_back({p.placement, p.value.detach()});
    return out;
  }

  std::string base, adapters;
  SafeTensorsFile data, expected;
  BaseModel of;
  std::vector<nn::Parameter> parameters;
};

TEST_P(GoldenAdapters, OutputsAndGradientsEqualPeft) {
  EXPECT_EQ(nn::adapted_layers(*of.model).size(), GetParam().layers);
  const auto task = builtin_kinds().tasks.at(GetParam().task).make(of.spec);
  data::Batch batch;
  for (const char* name : {"input_ids", "attention_mask", "token_type_ids", "pixel_values"})
    if (data.tensors().count(name) != 0) batch.inputs.set(name, data.read(name));
  batch.targets.set(nn::kLabels, data.read("labels"));
  const auto inputs = of.model->first_inputs(batch.inputs);
  const auto tokens = inputs[0].dim() == 2 ? inputs[0].size(1) : of.model->tokens(inputs);
  const nn::Context context{.training = true, .tokens = tokens, .side = of.model->side_inputs(batch.inputs)};
  for (const bool recompute : {false, true}) {
    for (auto& p : parameters) p.value.mutable_grad() = at::Tensor();
    const auto run = recompute ? nn::RunBlock(nn::recompute) : nn::RunBlock();
    const auto outputs = of.model->forward(inputs, context, run);
    auto weight = task->weight(batch);
    if (!weight.defined()) weight = at::scalar_tensor(inputs[0].size(0), at::kDouble);
    const auto loss = task->loss(outputs, batch, {}) / weight;
    loss.backward();
    const auto logits = expected.read("logits");
    auto off = outputs[0] - logits;
    if (logits.dim() == 3)  // padding tokens are not compared
      off = off * batch.inputs["attention_mask"].to(at::kDouble).unsqueeze(2);
    EXPECT_LE(norm_of(off), kAdapterBound * norm_of(logits));
    EXPECT_NEAR(loss.item<double>(), expected.read("loss").item<double>(), kAdapterBound);
    for (const auto& p : parameters) {
      const bool trained = expected.tensors().count("grad." + p.name) != 0;
      ASSERT_EQ(p.value.grad().defined(), trained) << p.name;
      if (!trained) continue;
      const auto want = expected.read("grad." + p.name);
      EXPECT_LE(norm_of(p.value.grad() - want), kAdapterBound * std::max(norm_of(want), 1e-6)) << p.name;
    }
  }
}

TEST_P(GoldenAdapters, FilesAreThoseOfPeft) {
  const checkpoint::TestFolder folder;
  checkpoint::save_adapters(folder / "adapters", state(), *of.model, {}, checkpoint::alone());
  const SafeTensorsFile peft(adapters + "/adapter_model.safetensors");
  const SafeTensorsFile ours(folder / "adapters/adapter_model.safetensors");
  EXPECT_EQ(ours.tensors().size(), peft.tensors().size());
  for (const auto& [name, entry] : peft.tensors()) {
    ASSERT_EQ(ours.tensors().count(name), 1U) << name;
    EXPECT_TRUE(at::equal(ours.read(name), peft.read(name))) << name;
  }

  checkpoint::save_merged(folder / "merged", state(), *of.model, folder / "adapters/adapter_model.safetensors", {},
                          checkpoint::alone());
  const SafeTensorsFile merged(folder / "merged/model.safetensors"), plain(base + "/model.safetensors");
  EXPECT_EQ(merged.tensors().size(), plain.tensors().size());
  for (const auto& [name, entry] : plain.tensors()) {
    ASSERT_EQ(merged.tensors().count(name), 1U) << name;
    const auto in_full = "base_model.model." + name;
    const bool changes = expected.tensors().count("merged." + name) != 0;
    const auto want = changes                             ? expected.read("merged." + name)
                      : peft.tensors().count(in_full) > 0 ? peft.read(in_full)
                                                          : plain.read(name);
    const auto got = merged.read(name);
    EXPECT_LE(norm_of(got - want), changes ? kAdapterBound * norm_of(want) : 0) << name;
  }
}

// Names with the adapter's own name in them, as in a PeftModel.
TEST_P(GoldenAdapters, ReadsTheNamesOfAPeftModel) {
  const checkpoint::TestFolder folder;
  const SafeTensorsFile peft(adapters + "/adapter_model.safetensors");
  std::vector<checkpoint::NamedValue> renamed;
  for (const auto& [name, entry] : peft.tensors()) {
    auto in_model = name;
    const auto dot = in_model.rfind('.');
    in_model.insert(dot, name.find("lora_") != std::string::npos ? ".default" : ".modules_to_save.default");
    renamed.push_back({in_model, peft.read(name)});
  }
  checkpoint::write_safetensors(folder / "adapter_model.safetensors", renamed);
  const auto before = state();
  std::vector<at::Tensor> values;
  for (auto& p : parameters) {
    values.push_back(p.value.detach().clone());
    if (p.value.requires_grad()) p.value.detach().zero_();
  }
  checkpoint::load_adapters(folder.path(), parameters, Log(1), checkpoint::other_tensors(*of.model));
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(at::equal(parameters[i].value, values[i])) << parameters[i].name;
}

INSTANTIATE_TEST_SUITE_P(
    Folders, GoldenAdapters,
    testing::Values(
        GoldenAdapter{"lora_bert",
                      "bert_sequence",
                      "bert",
                      "classification",
                      4,
                      {.rank = 2,
                       .alpha = 6,
                       .target = {"query", "value", "dense"},
                       .train = std::vector<std::string>{"classifier"}},
                      11},
        GoldenAdapter{
            "lora_llama", "llama_untied", "llama", "causal_lm", 0, {.rank = 3, .alpha = 4, .heads = {"lm_head"}}, 14},
        GoldenAdapter{"lora_llama_tied",
                      "llama_tied",
                      "llama",
                      "causal_lm",
                      0,
                      {.rank = 2,
                       .alpha = 4,
                       .target = {"q_proj"},
                       .train = std::vector<std::string>{"embed_tokens", "model.embed_tokens"}},
                      2},
        // By the names of transformers' modules, which PEFT's files have.
        GoldenAdapter{"lora_vit",
                      "vit",
                      "vit",
                      "classification",
                      5,
                      {.rank = 2,
                       .alpha = 6,
                       .target = {"q_proj", "attention.attention.value", "fc1"},
                       .train = std::vector<std::string>{"classifier"}},
                      6}),
    [](const auto& value) { return value.param.folder; });

/// A model with two tensors that are tied, and what PEFT saves of it when `train` is trained.
struct TiedModel {
  const char *folder, *model;
  std::vector<std::string> train;
  std::vector<std::string> modules, copies;
};
void PrintTo(const TiedModel& tied, std::ostream* out) { *out << tied.folder; }

class TiedAdapters : public testing::TestWithParam<TiedModel> {
 protected:
  using Changes = std::map<std::string, std::optional<at::Tensor>>;  ///< of the file; unset: without this tensor

  TiedAdapters() : base(kGoldenFolder + GetParam().folder) {}
  [[nodiscard]] std::shared_ptr<nn::Model> adapted(const std::vector<std::string>& train) const {
    auto model = BaseModel(GetParam().folder, GetParam().model, 0, at::zeros({1, 1})).model;
    nn::add_lora(*model,
                 {.rank = 2, .target = {GetParam().model == std::string("gpt2") ? "c_attn" : "q*"}, .train = train});
    nn::materialize(*model, 1, at::kDouble, at::kCPU);
    return model;
  }
  /// The adapters' file of a model whose trained tensors are random.
  std::map<std::string, at::Tensor> trained(const std::vector<std::string>& train) {
    const auto model = adapted(train);
    checkpoint::load_weights(base, nn::parameters(*model), "", Log(1), checkpoint::other_tensors(*model));
    std::vector<shard::Slice> state;
    for (const auto& p : nn::parameters(*model)) {
      if (p.value.requires_grad()) p.value.detach().normal_();
      values[p.name] = p.value.detach();
      state.push_back({p.placement, p.value.detach()});
    }
    checkpoint::save_adapters(folder / "adapters", state, *model, {}, checkpoint::alone());
    const SafeTensorsFile file(folder / "adapters/adapter_model.safetensors");
    std::map<std::string, at::Tensor> out;
    for (const auto& [name, entry] : file.tensors()) out[name] = file.read(name);
    return out;
  }
  /// Reads a changed copy of the file into another model, and returns its values.
  std::map<std::string, at::Tensor> read(std::map<std::string, at::Tensor> file, const Changes& changes,
                                         const std::vector<std::string>& train) {
    for (const auto& [name, value] : changes) {
      file.erase("base_model.model." + name);
      if (value) file["base_model.model." + name] = *value;
    }
    make_folder(folder / "changed");
    std::vector<checkpoint::NamedValue> stored;
    for (const auto& [name, value] : file) stored.push_back({name, value});
    checkpoint::write_safetensors(folder / "changed/adapter_model.safetensors", stored);
    const auto model = adapted(train);
    const auto parameters = nn::parameters(*model);
    checkpoint::load_weights_and_adapters(base, folder / "changed", parameters, "", Log(1),
                                          checkpoint::other_tensors(*model));
    std::map<std::string, at::Tensor> out;
    for (const auto& p : parameters) out[p.name] = p.value.detach();
    return out;
  }

  std::string base;
  checkpoint::TestFolder folder;
  std::map<std::string, at::Tensor> values;  ///< of the trained model
};

std::string config_error(const std::function<void()>& body);

TEST_P(TiedAdapters, AreSavedWithTheirCopies) {
  const auto& [name, kind, train, modules, copies] = GetParam();
  EXPECT_EQ(nn::saved_modules(*adapted(train)).paths, modules);
  const auto file = trained(train);
  const auto rows = adapted(train)->redundant_tensors();
  std::size_t found = 0;
  for (const auto& row : rows)
    if (const auto copy = file.find("base_model.model." + row.stored); copy != file.end()) {
      ++found;
      EXPECT_EQ(std::count(copies.begin(), copies.end(), row.stored), 1) << row.stored;
      EXPECT_TRUE(at::equal(copy->second, values.at(row.copy_of))) << row.stored;
    }
  EXPECT_EQ(found, copies.size());

  // PEFT's modules_to_save name both; without, the copy is one of the trained module.
  for (const auto& names : {train, modules}) {
    const auto again = read(file, {}, names);
    for (const auto& [parameter, value] : values) EXPECT_TRUE(at::equal(again.at(parameter), value)) << parameter;
  }

  // A model that starts from the file keeps all that it holds, trained or not.
  const auto next = adapted({});
  const auto loaded = checkpoint::parameters_in(folder / "adapters", *next);
  EXPECT_EQ(nn::saved_modules(*next, loaded).paths, modules);
  std::vector<shard::Slice> state;
  for (const auto& p : nn::parameters(*next)) state.push_back({p.placement, p.value});
  std::set<std::string> names;
  for (const auto& slice : checkpoint::adapter_slices(state, *next, loaded)) names.insert(slice.placement.name);
  EXPECT_EQ(names.size(), file.size());
  for (const auto& [stored, value] : file) EXPECT_TRUE(names.contains(stored)) << stored;
}

TEST_P(TiedAdapters, OfTwoModelsAreRefused) {
  const auto& train = GetParam().train;
  const auto file = trained(train);
  for (const auto& row : adapted(train)->redundant_tensors()) {
    const auto copy = file.find("base_model.model." + row.stored);
    if (row.copy_of.empty() || copy == file.end()) continue;
    const bool in_file = file.count("base_model.model." + row.copy_of) != 0;
    const auto differs = config_error([&] { read(file, {{row.stored, copy->second + 1}}, train); });
    EXPECT_NE(differs.find(fmt::format("the tensors \"base_model.model.{}\" and \"{}{}\"{} differ, but this model uses "
                                       "one for both; ",
                                       row.stored, in_file ? "base_model.model." : "", row.copy_of,
                                       in_file ? "" : " of the base model")),
              std::string::npos)
        << differs;
    if (!in_file) {
      EXPECT_NO_THROW(read(file, {{row.stored, std::nullopt}}, train)) << "PEFT has the base model's values too";
      continue;
    }
    const auto lacks = config_error([&] { read(file, {{row.stored, std::nullopt}}, train); });
    EXPECT_NE(
        lacks.find(fmt::format("has \"base_model.model.{}\" but not \"base_model.model.{}\"", row.copy_of, row.stored)),
        std::string::npos)
        << lacks;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Trained, TiedAdapters,
    testing::Values(
        TiedModel{"llama_tied", "llama", {"embed_tokens"}, {"model.embed_tokens", "lm_head"}, {"lm_head.weight"}},
        TiedModel{
            "gpt2", "gpt2", {"wte", "ln_f"}, {"transformer.wte", "transformer.ln_f", "lm_head"}, {"lm_head.weight"}},
        TiedModel{"bert_masked_lm",
                  "bert",
                  {"word_embeddings"},
                  {"bert.embeddings.word_embeddings", "cls.predictions.decoder"},
                  {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}},
        TiedModel{"bert_masked_lm",
                  "bert",
                  {"cls.predictions"},
                  {"cls.predictions"},
                  {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}},
        TiedModel{"bert_masked_lm",
                  "bert",
                  {"embeddings", "cls.predictions"},
                  {"bert.embeddings.word_embeddings", "bert.embeddings.position_embeddings",
                   "bert.embeddings.token_type_embeddings", "bert.embeddings.LayerNorm", "cls.predictions"},
                  {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}}));

// PEFT trains an embedding and a tied head as two tensors.
TEST(Lora, BothTensorsOfAHeadThatIsNoLongerTied) {
  const std::vector<std::string> train{"embed_tokens", "lm_head"};
  const BaseModel llama("llama_tied", "llama", 0, at::zeros({1, 1}), {{"tie_word_embeddings", false}});
  nn::add_lora(*llama.model, {.rank = 2, .target = {"q_proj"}, .train = train});
  nn::materialize(*llama.model, 1, at::kDouble, at::kCPU);
  EXPECT_EQ(nn::saved_modules(*llama.model).paths, (std::vector<std::string>{"model.embed_tokens", "lm_head"}));
  EXPECT_TRUE(nn::saved_modules(*llama.model).copies.empty());
  const SafeTensorsFile peft(kGoldenFolder + "lora_llama_tied/adapter_model.safetensors");
  std::vector<checkpoint::NamedValue> values;
  for (const auto& [name, entry] : peft.tensors())
    values.push_back({name, name.find("lm_head") == std::string::npos ? peft.read(name) : peft.read(name) + 1});
  const checkpoint::TestFolder folder;
  checkpoint::write_safetensors(folder / "adapter_model.safetensors", values);
  const auto parameters = nn::parameters(*llama.model);
  // The base model has no head of its own.
  checkpoint::load_weights_and_adapters(kGoldenFolder + "llama_tied", folder.path(), parameters, "", Log(1),
                                        checkpoint::other_tensors(*llama.model));
  const auto embedding = peft.read("base_model.model.model.embed_tokens.weight");
  for (const auto& p : parameters) {
    const bool is_head = p.name == "lm_head.weight";
    if (!is_head && p.name != "model.embed_tokens.weight") continue;
    EXPECT_TRUE(at::equal(p.value, is_head ? embedding + 1 : embedding)) << p.name;
  }
}

TEST(Lora, TheOtherNameOfATiedTensor) {
  const BaseModel llama("llama_tied", "llama", 0, at::zeros({1, 1}));
  EXPECT_EQ(
      config_error([&] { nn::add_lora(*llama.model, {.rank = 2, .train = std::vector<std::string>{"lm_head"}}); }),
      "lora.train: \"lm_head\" has the tensor of \"model.embed_tokens\" in this model; name that module");
}

std::string config_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Lora, StartsFromTheModelsOwnOutputsAndFreezesIt) {
  auto plain = small_bert(), adapted = small_bert();
  nn::add_lora(*adapted.model, {.rank = 3,
                                .target = {"attention.self.*", "layer.1.output.dense"},
                                .train = std::vector<std::string>{"classifier", "pooler"}});
  for (auto* model : {plain.model.get(), adapted.model.get()}) nn::materialize(*model, 5, at::kDouble, at::kCPU);
  std::vector<std::string> paths;
  for (const auto* layer : nn::adapted_layers(*adapted.model)) paths.push_back(layer->path());
  const std::string layer = "bert.encoder.layer.";
  EXPECT_EQ(paths, (std::vector<std::string>{layer + "0.attention.self.query", layer + "0.attention.self.key",
                                             layer + "0.attention.self.value", layer + "1.attention.self.query",
                                             layer + "1.attention.self.key", layer + "1.attention.self.value",
                                             layer + "1.output.dense"}));
  EXPECT_EQ(nn::trained_modules(*adapted.model), (std::vector<std::string>{"bert.pooler.dense", "classifier"}));
  for (const auto& p : nn::parameters(*adapted.model)) {
    const bool is_a = p.name.ends_with(".lora_A.weight"), is_b = p.name.ends_with(".lora_B.weight");
    EXPECT_EQ(p.value.requires_grad(),
              is_a || is_b || p.name.starts_with("classifier") || p.name.starts_with("bert.pooler"))
        << p.name;
    if (!is_a && !is_b) continue;
    const auto most = p.value.abs().max().item<double>(), bound = 1 / std::sqrt(static_cast<double>(p.value.size(1)));
    if (is_b) {
      EXPECT_EQ(most, 0) << p.name;
      continue;
    }
    EXPECT_LE(most, bound) << p.name;
    EXPECT_GE(most, bound / 2) << p.name;
  }
  const SafeTensorsFile data(kGoldenFolder + "bert_sequence/expected.safetensors");
  const auto ids = data.read("input_ids");
  const nn::Context context{.tokens = ids.size(1)};
  EXPECT_TRUE(at::equal(plain.model->forward({ids}, context)[0], adapted.model->forward({ids}, context)[0]));
}

TEST(Lora, ModulesHaveTransformersNamesToo) {
  const auto model = BaseModel("vit", "vit", 5, at::zeros({1})).model;
  nn::add_lora(*model, {.rank = 2, .target = {"0.attention.q_proj"}, .train = std::vector<std::string>{"1.mlp.fc2"}});
  ASSERT_EQ(nn::adapted_layers(*model).size(), 1U);
  EXPECT_EQ(nn::adapted_layers(*model).front()->path(), "vit.encoder.layer.0.attention.attention.query");
  EXPECT_EQ(nn::trained_modules(*model), std::vector<std::string>{"vit.encoder.layer.1.output.dense"});
  EXPECT_EQ(model->module_in_modules("vit.encoder.layer.1.output.dense"), "vit.layers.1.mlp.fc2");
}

TEST(Lora, RefusesWhatCannotBeAdapted) {
  const auto refused = [](const nn::LoraOptions& options) {
    return config_error([&] { nn::add_lora(*small_bert().model, options); });
  };
  EXPECT_EQ(refused({.rank = 2, .target = {"qery"}}),
            "lora.target: \"qery\" matches no linear layer without lora.train (these are called classifier, dense, "
            "key, query, value); did you mean \"query\"?");
  EXPECT_EQ(refused({.rank = 2, .target = {"query", "word_embeddings"}}),
            "lora.target: \"bert.embeddings.word_embeddings\" is not a linear layer, and only these have adapters; "
            "choose from classifier, dense, key, query, value");
  EXPECT_EQ(refused({.rank = 2, .train = std::vector<std::string>{"clasifier"}}),
            "lora.train: \"clasifier\" matches no module that has parameters; did you mean \"classifier\"?");
  EXPECT_EQ(refused({.rank = 13, .target = {"query"}}),
            "lora.rank: 13 is more than the rank of \"bert.encoder.layer.0.attention.self.query\" can be, which has 12 "
            "inputs and 12 outputs; choose at most 12, or leave the layer out of lora.target");
  auto twice = small_bert();
  nn::add_lora(*twice.model, {.rank = 2, .target = {"query"}});
  EXPECT_EQ(config_error([&] { nn::add_lora(*twice.model, {.rank = 2}); }),
            "add_lora(): the model has adapters already; add them once");
}

TEST(Lora, RefusesFilesOfOtherAdapters) {
  const auto load = [](const nn::LoraOptions& options, const std::string& weights, const std::string& adapters) {
    return [=] {
      const auto of = small_bert();
      if (options.rank > 0) nn::add_lora(*of.model, options);
      nn::materialize(*of.model, 1, at::kDouble, at::kCPU);
      checkpoint::load_weights_and_adapters(weights, adapters, nn::parameters(*of.model), "", Log(1),
                                            checkpoint::other_tensors(*of.model));
    };
  };
  const auto base = kGoldenFolder + "bert_sequence", adapters = kGoldenFolder + "lora_bert";
  const auto train = std::vector<std::string>{"classifier"};
  checkpoint::expect_error(load({.rank = 2, .target = {"query"}, .train = train}, base, adapters),
                           {"18 tensors of layers that have no adapters here", "check target and train of [lora]"});
  checkpoint::expect_error(load({.rank = 2, .train = train}, base, adapters),
                           {"these are not adapters of this model; 4 tensors missing", "key.lora_A.weight"});
  checkpoint::expect_error(load({.rank = 4, .target = {"query", "value", "dense"}, .train = train}, base, adapters),
                           {"22 do not fit", "[4, 12] (the file has", "[2, 12])"});
  checkpoint::expect_error(load({.rank = 2, .train = train}, base, base), {"no adapters here; name a folder with"});
  checkpoint::expect_error(load({.rank = 0}, adapters + "/adapter_model.safetensors", ""),
                           {"these are not weights of this model"});

  // The weights of a run with [lora], as in its checkpoints.
  const checkpoint::TestFolder folder;
  const auto of = small_bert();
  nn::add_lora(*of.model, {.rank = 2, .target = {"query"}});
  nn::materialize(*of.model, 1, at::kDouble, at::kCPU);
  std::vector<shard::Slice> state;
  for (const auto& p : nn::parameters(*of.model)) state.push_back({p.placement, p.value.detach()});
  checkpoint::save_weights(folder.path(), state, {}, checkpoint::alone());
  EXPECT_NO_THROW(load({.rank = 2, .target = {"query"}}, folder.path(), "")());
  checkpoint::expect_error(load({.rank = 0}, folder.path(), ""),
                           {"these weights have adapters (bert.encoder.layer.0.attention.self.query.lora_A.weight), "
                            "but the model has none; add the section [lora]"});
}

}  // namespace
}  // namespace trireme
