// What the set-up of a run refuses before ranks are connected and folders are touched, with the location in the user's
// file.
#include "core/setup/run_setup.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/comm/world.h"
#include "core/setup/export_texts.h"
#include "tests/unit/datasets/folder.h"
#include "tests/unit/train/small_run.h"

namespace trireme::train {
namespace {

using data::testing_tools::bytes_of;
using data::testing_tools::Folder;
using data::testing_tools::message_of;
using testing_tools::kModelAndData;
using testing_tools::setup_of;

const auto kGood = kModelAndData + R"([train]
epochs = 2
global_batch = 8
[optimizer]
weight_decay = 0.1
[schedule]
name = "cosine"
)";

/// data.mean or data.std, as the data set filled them in.
std::vector<double> normalisation(const RunSetup& setup, const std::string& key) {
  const auto& source = setup.config.data.source;
  return std::get<std::vector<double>>(source.fields().find(key)->get(source.options()));
}

TEST(Prepare, NamesTheLineOfAKeyAndOfAGroup) {
  auto good = kGood;
  good.replace(good.find("weight_decay = 0.1"), 18, "weight_decay = 0.1\nno_decay = [\"bais\"]");
  EXPECT_EQ(message_of<ConfigError>([&] { setup_of(good, {}); }),
            "a.toml:16:1: optimizer.no_decay = [\"bais\"]: \"bais\" matches no parameter; did you mean \"bias\"?");
  const auto refused = [](const std::string& second) {
    const auto text =
        kGood + "[[optimizer.group]]\nparameters = [\"layernorm\"]\nlr_scale = 2\n[[optimizer.group]]\n" + second;
    return message_of<ConfigError>([&] { setup_of(text, {}); });
  };
  EXPECT_EQ(refused("parameters = [\"clasifier\"]\n"),
            "a.toml:22:1: optimizer.group.parameters = [\"clasifier\"]: \"clasifier\" matches no parameter; did you "
            "mean \"classifier\"?");
  EXPECT_EQ(refused("parameters = [\"classifier\"]\n"),
            "a.toml:22:1: optimizer.group.parameters = [\"classifier\"]: classifier would be trained as all other "
            "parameters, so the group has no effect; set its lr_scale or weight_decay, or remove it");
}

// There is no silent fallback: TF32 needs a CUDA GPU, and a GPU that is requested must be present.
TEST(Prepare, RefusesADeviceWithoutTheRequestedFeature) {
  EXPECT_EQ(message_of<ConfigError>([&] {
              setup_of(kGood, {"run.device=cpu", "train.precision=tf32"});
            }),
            "--set train.precision=tf32: \"tf32\" is a mode of CUDA GPUs, but this run is on the CPU; use \"fp32\"");
  if (comm::cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_NE(message_of<ConfigError>([&] { setup_of(kGood, {"train.precision=tf32"}); }).find("use \"fp32\""),
            std::string::npos);
  EXPECT_NE(message_of<ConfigError>([&] { setup_of(kGood, {"run.device=cuda"}); }).find("reports no device"),
            std::string::npos);
}

TEST(Prepare, CountsTheStepsOfTheTraining) {
  EXPECT_EQ(setup_of(kGood, {}).batch.steps, 12);  // 42 samples of 60
  EXPECT_EQ(setup_of(kGood, {"train.drop_last=true"}).batch.steps, 10);
  EXPECT_EQ(setup_of(kGood, {"train.max_steps=7"}).batch.steps, 7);
  for (const auto* accepted : {"schedule.warmup_steps=12", "train.eval_every=12", "train.patience=9"})
    EXPECT_EQ(setup_of(kGood, {accepted}).batch.steps, 12) << accepted;
}

// The same file runs on more ranks: a microbatch is then at most a rank's share.
TEST(Prepare, AMicrobatchIsAtMostARanksShare) {
  EXPECT_EQ(setup_of(kGood, {"train.micro_batch=8"}).batch.micro, 8);
  EXPECT_EQ(setup_of(kGood, {"train.micro_batch=8"}, 3).batch.micro, 3);
  EXPECT_EQ(setup_of(kGood, {}, 3).batch.micro, 3);
}

/// A folder with weights for kGood's model, with or without a head; their values are not read.
class Weights {
 public:
  explicit Weights(const std::string& head = "classifier.bias") {
    folder_.write("model.safetensors",
                  data::testing_tools::safetensors({{head, "F32", "3", bytes_of(std::vector<float>(3, 0.0F))}}));
    const auto good = setup_of(kGood, {});
    config_ = good.model.kind->to_hf(good.model.options.get());
    config_.erase("id2label");
    write(config_, "config.json");
  }
  void write(const nlohmann::json& json, const std::string& name) const { folder_.write(name, json.dump()); }
  void name(const std::vector<std::string>& classes) {
    config_["id2label"] = nlohmann::json::object();
    for (std::size_t i = 0; i < classes.size(); ++i) config_["id2label"][std::to_string(i)] = classes[i];
    write(config_, "config.json");
  }
  [[nodiscard]] std::string path(const std::string& name = "") const { return folder_.path(name); }

 private:
  Folder folder_;
  nlohmann::json config_;
};

std::vector<std::int64_t> labels_of(data::Dataset& split) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < split.size(); ++i) {
    labels.push_back(split.get_with({}, i, 0, false)->targets["labels"].item<std::int64_t>());
    EXPECT_EQ(split.get(i, 0, false)->targets["labels"].item<std::int64_t>(), labels.back());
  }
  return labels;
}

// The data's classes are angular_spots, healthy and rust.
TEST(Prepare, ClassIdsFollowTheWeights) {
  Weights weights;
  const auto plain = setup_of(kGood, {});
  for (const bool evaluates : {true, false}) {
    const auto with = [&] {
      return evaluates ? setup_of(kGood, {}, 1, weights.path()) : setup_of(kGood, {"model.weights=" + weights.path()});
    };
    for (const auto& names :
         {std::vector<std::string>{"angular_spots", "healthy", "rust"}, {"LABEL_0", "LABEL_1", "LABEL_2"}}) {
      weights.name(names);
      EXPECT_EQ(with().data.info.spec.class_names, plain.data.info.spec.class_names);
    }
    weights.name({"healthy", "rust", "angular_spots"});
    const auto mapped = with();
    EXPECT_EQ(mapped.data.info.spec.class_names, (std::vector<std::string>{"healthy", "rust", "angular_spots"}));
    for (const auto& [ours, theirs] : {std::pair{plain.data.train, mapped.data.train},
                                       {plain.data.validation, mapped.data.validation},
                                       {plain.data.test, mapped.data.test}}) {
      auto expected = labels_of(*ours);
      for (auto& label : expected) label = (label + 2) % 3;
      EXPECT_EQ(labels_of(*theirs), expected);
    }
    EXPECT_EQ(mapped.model.kind->to_hf(mapped.model.options.get())["id2label"]["0"], "healthy");
    for (const auto& names :
         {std::vector<std::string>{"a", "b", "c"}, {"a", "b", "c", "d"}, {"healthy", "healthy", "rust"}}) {
      weights.name(names);
      const auto message = message_of<ConfigError>([&] { with(); });
      EXPECT_EQ(message.find("for the classes " + names[0]) != std::string::npos, evaluates) << message;
      EXPECT_EQ(message.find("angular_spots, healthy, rust") != std::string::npos, evaluates) << message;
    }
  }
}

// Two classes of ImageNet are cranes. Their numbers tell them apart, and names cannot.
TEST(Prepare, ClassesOfOneNameAreKeptApartByTheirNumbers) {
  Weights weights;
  using Names = std::vector<std::string>;
  const Names theirs{"crane", "bird", "crane"};
  weights.name(theirs);
  const std::string alike =
      ": the labels 0 and 2 of these weights are both named \"crane\", and the data has its classes in another order, "
      "so which of them is which is not known; number the labels of the data as the weights do, and name its classes "
      "in their order: 0 crane, 1 bird, 2 crane";
  const std::string others = ": these weights are for the classes crane, bird, crane, but the data has ";
  const struct {
    Names data;
    std::string evaluation, training;  // "": it is possible
  } rows[] = {{theirs, "", ""},
              {{"bird", "crane", "crane"}, alike, alike},
              {{"bird", "crane", "ox"}, others + "bird, crane, ox", ""},
              {{"bird", "crane"}, others + "bird, crane", ""},
              {{"0", "1", "2", "3"}, others + "0, 1, 2, 3", ""}};
  for (const auto& row : rows)
    for (const bool evaluates : {true, false}) {
      auto data = setup_of(kGood, {}).data;
      data.info.spec.class_names = row.data;
      const auto& says = evaluates ? row.evaluation : row.training;
      const auto said = message_of<ConfigError>([&] {
        const auto numbered = numbered_as(theirs, data, weights.path(), !evaluates, Log(1));
        EXPECT_EQ(numbered.info.spec.class_names, row.data);
      });
      EXPECT_EQ(said.rfind(says.empty() ? "no error" : weights.path() + says, 0), 0U) << said;
    }
}

// Numbers are the weights' classes, and an evaluation may lack some of them, by number or by name.
TEST(Prepare, DataMayHaveNumbersOrSomeOfTheClasses) {
  using Names = std::vector<std::string>;
  const Names given{"x", "healthy", "angular_spots", "rust"}, unnamed{"LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"};
  const auto plain = setup_of(kGood, {}).data;
  const auto before = labels_of(*plain.train);
  const struct {
    Names labels, data;
    bool trains;
    Names classes;
    std::vector<std::int64_t> new_labels;
  } rows[] = {{given, {"0", "1", "2"}, false, given, {0, 1, 2}},
              {given, {"0", "1", "2"}, true, {"0", "1", "2"}, {0, 1, 2}},
              {given, {"0", "1", "2", "3"}, true, given, {0, 1, 2}},
              {{"0", "1", "10", "2"}, {"0", "1", "2"}, false, {"0", "1", "10", "2"}, {0, 1, 3}},
              {{"2", "0", "1"}, {"0", "1", "2"}, true, {"2", "0", "1"}, {1, 2, 0}},
              {unnamed, {"0", "1", "2"}, false, {"0", "1", "2", "3"}, {0, 1, 2}},
              {unnamed, {"0", "1", "2"}, true, {"0", "1", "2"}, {0, 1, 2}},
              {given, {"angular_spots", "healthy", "rust"}, false, given, {2, 1, 3}},
              {given, {"angular_spots", "healthy", "rust"}, true, {"angular_spots", "healthy", "rust"}, {0, 1, 2}}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.data.front() + (row.trains ? ", training" : ", evaluation"));
    auto data = plain;
    data.info.spec.class_names = row.data;
    data.info.spec.classes = static_cast<std::int64_t>(row.data.size());
    const auto out = numbered_as(row.labels, std::move(data), "weights", row.trains, Log(1));
    EXPECT_EQ(out.info.spec.class_names, row.classes);
    EXPECT_EQ(out.info.spec.classes, static_cast<std::int64_t>(row.classes.size()));
    auto expected = before;
    for (auto& label : expected) label = row.new_labels.at(static_cast<std::size_t>(label));
    EXPECT_EQ(labels_of(*out.train), expected);
  }
}

// A file that only names the classes may be written beside weights that have no config.json.
TEST(Prepare, AConfigJsonMayNameOnlyTheClasses) {
  const Weights weights;
  for (const std::string labels : {R"({"id2label": {"0": "rust", "1": "healthy", "2": "angular_spots"}})", "{}"}) {
    weights.write(nlohmann::json::parse(labels), "config.json");
    const auto message = message_of<ConfigError>(
        [&] { EXPECT_EQ(setup_of(kGood, {}, 1, weights.path()).data.info.spec.class_names.front(), "rust"); });
    EXPECT_EQ(message == "no error", labels != "{}") << message;
  }
}

TEST(Prepare, RefusesAConfigJsonThatDoesNotFit) {
  const Weights weights;
  const auto stored = checkpoint::read_beside_weights(weights.path());
  const std::string file = weights.path("config.json"),
                    labels = "; it must be an object with the names of the labels, by their numbers from 0",
                    problems = "; it must be single_label_classification or multi_label_classification or regression";
  const struct {
    const char* key;
    nlohmann::json value;
    std::string says;
    bool trains = false;  // may start a training of another task
  } rows[] = {
      {"id2label", {"a", "b"}, "id2label is [\"a\",\"b\"]" + labels},
      {"id2label", nlohmann::json::array(), "id2label is []" + labels},
      {"id2label", 3, "id2label is 3" + labels},
      {"id2label", {{"1", "a"}, {"2", "b"}, {"3", "c"}}, R"(id2label is {"1":"a","2":"b","3":"c"})" + labels},
      {"problem_type", "clasification", "problem_type is \"clasification\"" + problems},
      {"problem_type", 1, "problem_type is 1" + problems},
      {"problem_type", "regression",
       "problem_type is \"regression\", but the task is \"classification\"; evaluate these weights by their own task, "
       "on "
       "data for it",
       true},
      {"problem_type", "single_label_classification", "", true},
      {"problem_type", nullptr, "", true},
      {"id2label", nullptr, "", true},
  };
  for (const auto& [key, value, says, trains] : rows) {
    SCOPED_TRACE(fmt::format("{}: {}", key, value.dump()));
    auto config = stored;
    config[key] = value;
    weights.write(config, "config.json");
    const auto expected = says.empty() ? "no error" : file + ": " + says;
    EXPECT_EQ(message_of<Error>([&] { setup_of(kGood, {}, 1, weights.path()); }), expected);
    EXPECT_EQ(message_of<Error>([&] { setup_of(kGood, {"model.weights=" + weights.path()}); }),
              trains ? "no error" : expected);
  }
  weights.write({1, 2}, "config.json");
  EXPECT_EQ(message_of<CheckpointError>([&] { setup_of(kGood, {}, 1, weights.path()); }), file + ": not a JSON object");
}

/// Texts and a tokenizer in a folder: a model that is trained on them from new weights, or from those in weights/.
class Texts {
 public:
  explicit Texts(std::string model = "llama") : model_(std::move(model)) {
    std::string lines, table = "sentence\tlabel\n";
    for (int i = 0; i < 40; ++i) {
      lines += "a b c d b\n";
      table += i % 2 == 0 ? "a b\tgood\n" : "c d\tbad\n";
    }
    for (const auto* split : {"train", "validation"}) {
      folder_.write(fmt::format("lines/{}.txt", split), lines);
      folder_.write(fmt::format("tables/{}.tsv", split), table);
    }
    folder_.write("tokenizer/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n");
  }
  [[nodiscard]] RunSetup run(std::vector<std::string> set, const std::string& data = "text") const {
    const bool is_table = data == "text_classification";
    set.push_back("data.path=" + folder_.path(is_table ? "tables" : "lines"));
    return setup_of("[model]\nname = \"" + model_ +
                        "\"\nhidden_size = 16\nnum_layers = 1\nnum_heads = 2\nintermediate_size = 24\n"
                        "max_positions = 32\n[data]\nname = \"" +
                        data + "\"\n" + (is_table ? "max_tokens = 8\n" : "block = 8\n") + "[train]\nglobal_batch = 4\n",
                    set);
  }
  [[nodiscard]] std::string tokenizer() const { return "data.tokenizer=" + folder_.path("tokenizer"); }
  /// Weights of a model of `first`, whose values are not read, with these changes to its config.json.
  [[nodiscard]] std::string weights(const RunSetup& first, const nlohmann::json& changes) const {
    auto config = nlohmann::json::parse(model_texts(first).at("config.json"));
    config.update(changes);
    folder_.write("weights/model.safetensors",
                  data::testing_tools::safetensors({{"some.bias", "F32", "3", bytes_of(std::vector<float>(3, 0.0F))}}));
    folder_.write("weights/config.json", config.dump());
    return folder_.path("weights");
  }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }

 private:
  Folder folder_;
  std::string model_;
};

// transformers would take 2 for a Llama and 50256 for a GPT-2 where the file has no key.
TEST(Prepare, TheIdsOfANewModelAreThoseOfItsTokenizer) {
  for (const auto* model : {"llama", "gpt2"}) {
    const Texts texts(model);
    auto of_words = model_texts(texts.run({texts.tokenizer()}));
    const auto words = nlohmann::json::parse(of_words.at("config.json"));
    EXPECT_EQ(words.at("bos_token_id"), nullptr);
    EXPECT_EQ(words.at("eos_token_id"), 3);  // [SEP], which ends the documents
    EXPECT_EQ(words.at("pad_token_id"), 0);
    EXPECT_EQ(nlohmann::json::parse(of_words.at("generation_config.json")),
              nlohmann::json::parse(R"({"eos_token_id": 3, "pad_token_id": 0})"));
    auto of_bytes = model_texts(texts.run({"data.tokenizer=bytes"}));
    const auto bytes = nlohmann::json::parse(of_bytes.at("config.json"));
    for (const auto* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) EXPECT_EQ(bytes.at(key), nullptr) << key;
    EXPECT_FALSE(of_bytes.contains("generation_config.json"));
  }
  const Texts texts("bert");
  texts.write("tokenizer/vocab.txt", "[UNK]\n[CLS]\n[SEP]\n[MASK]\n[PAD]\na\nb\nc\nd\n");
  auto masked = model_texts(texts.run({texts.tokenizer(), "data.masking=0.5"}));
  EXPECT_EQ(nlohmann::json::parse(masked.at("config.json")).at("pad_token_id"), 4);
  EXPECT_FALSE(masked.contains("generation_config.json"));
}

TEST(Prepare, AnExportKeepsWhatTheRunDoesNotDecide) {
  const Texts texts;
  const nlohmann::json changes{
      {"bos_token_id", 7},         {"eos_token_id", {3, 5}},
      {"pad_token_id", nullptr},   {"task_specific_params", {{"text-generation", {{"max_length", 50}}}}},
      {"torch_dtype", "float64"},  {"use_cache", false},
      {"attention_dropout", 0.25}, {"auto_map", {{"AutoConfig", "mine.py"}}}};
  const auto weights = texts.weights(texts.run({texts.tokenizer()}), changes);
  EXPECT_EQ(end_ids(texts.run({"model.weights=" + weights, texts.tokenizer()}).weights),
            (std::vector<std::int64_t>{3, 5}));
  const std::string generation = R"({"eos_token_id": 8, "temperature": 0.7})", jinja = "{{ messages }}";
  texts.write("weights/generation_config.json", generation);
  texts.write("weights/chat_template.jinja", jinja);
  texts.write("weights/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n");
  texts.write("weights/tokenizer_config.json", "{}");
  for (const bool own_tokenizer : {true, false}) {
    SCOPED_TRACE(own_tokenizer);
    std::vector<std::string> set{"model.weights=" + weights, "model.attention_dropout=0.5"};
    if (!own_tokenizer) set.push_back(texts.tokenizer());
    const auto run = texts.run(set);
    auto files = model_texts(run, at::kBFloat16);
    const auto config = nlohmann::json::parse(files.at("config.json"));
    for (const auto* key : {"bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "use_cache"})
      EXPECT_EQ(config.at(key), changes.at(key)) << key;
    for (const auto* key : {"dtype", "torch_dtype"}) EXPECT_EQ(config.at(key), "bfloat16");
    EXPECT_EQ(config.at("attention_dropout"), 0.5);
    EXPECT_FALSE(config.contains("auto_map"));
    EXPECT_EQ(files.at("generation_config.json"), generation);
    // A template and options of another tokenizer would not fit.
    EXPECT_EQ(files.contains("chat_template.jinja"), own_tokenizer);
    EXPECT_EQ(files.contains("tokenizer_config.json"), own_tokenizer);
    EXPECT_TRUE(files.contains("vocab.txt"));
    EXPECT_EQ(end_ids(run.weights), (std::vector<std::int64_t>{8}));
  }
  texts.write("weights/generation_config.json", R"({"eos_token_id": "</s>"})");
  EXPECT_EQ(message_of<CheckpointError>([&] { (void)end_ids(texts.run({"model.weights=" + weights}).weights); }),
            weights + "/generation_config.json: eos_token_id is \"</s>\"; it must be a token's id, or a list of ids");
  texts.write("weights/generation_config.json", "[8]");
  EXPECT_EQ(message_of<CheckpointError>([&] { (void)texts.run({"model.weights=" + weights}); }),
            weights + "/generation_config.json: not a JSON object");
}

// What the config.json of masked tokens says of its own task, another task's does not.
TEST(Prepare, AnExportForgetsTheTaskBefore) {
  const Texts texts("bert");
  const auto weights = texts.weights(texts.run({texts.tokenizer(), "data.masking=0.5"}),
                                     {{"id2label", {{"0", "yes"}, {"1", "no"}, {"2", "maybe"}}},
                                      {"num_labels", 3},
                                      {"problem_type", "multi_label_classification"},
                                      {"finetuning_task", "squad"},
                                      {"classifier_dropout", 0.3}});
  texts.write("weights/generation_config.json", "{}");
  auto files = model_texts(texts.run({"model.weights=" + weights, texts.tokenizer()}, "text_classification"));
  const auto config = nlohmann::json::parse(files.at("config.json"));
  EXPECT_EQ(config.at("architectures"), nlohmann::json({"BertForSequenceClassification"}));
  EXPECT_EQ(config.at("id2label"), nlohmann::json::parse(R"({"0": "bad", "1": "good"})"));
  EXPECT_EQ(config.at("classifier_dropout"), 0.3);
  for (const auto* key : {"num_labels", "problem_type", "finetuning_task"}) EXPECT_FALSE(config.contains(key)) << key;
  EXPECT_FALSE(files.contains("generation_config.json"));
}

TEST(Prepare, AnEvaluationNeedsAHead) {
  const Weights base("vit.layernorm.bias");
  EXPECT_EQ(message_of<CheckpointError>([&] { setup_of(kGood, {}, 1, base.path()); }),
            fmt::format("{0}: no classifier head in these weights; train one first, from model.weights = \"{0}\"",
                        base.path()));
  EXPECT_NO_THROW(setup_of(kGood, {"model.weights=" + base.path()}));
}

TEST(Prepare, NormalisationFollowsTheWeights) {
  const Weights weights;
  const auto file = weights.path("preprocessor_config.json");
  const std::vector<double> mean{0.485, 0.456, 0.406}, std{0.229, 0.224, 0.225};
  const auto with = [&](const std::vector<std::string>& more) {
    auto set = more;
    set.push_back("model.weights=" + weights.path());
    return setup_of(kGood, set);
  };
  using List = std::vector<double>;
  const struct {
    const char* stored;
    List mean, std;
  } rows[] = {
      {R"({"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]})", mean, std},
      {R"({"image_mean": [0.485, 0.456, 0.406], "image_std": 0.25, "rescale_factor": 0.00392156862745098})",
       mean,
       {0.25, 0.25, 0.25}},
      {R"({"do_normalize": false})", {0, 0, 0}, {1, 1, 1}},
      {R"({"do_rescale": false, "image_mean": [127.5, 127.5, 127.5], "image_std": [51, 51, 51]})",
       {0.5, 0.5, 0.5},
       {0.2, 0.2, 0.2}},
      // Newer versions write image processors like this.
      {R"({"do_center_crop": null, "crop_size": null, "do_resize": null, "resample": null, "do_normalize": null,
           "image_mean": null, "image_std": [0.229, 0.224, 0.225], "rescale_factor": null})",
       {0.5, 0.5, 0.5},
       std},
      {R"({"image_processor_type": "ViTImageProcessor"})", {0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}},
  };
  for (const auto& row : rows) {
    weights.write(nlohmann::json::parse(row.stored), "preprocessor_config.json");
    const auto got = with({});
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(normalisation(got, "mean")[i], row.mean[i], 1e-12) << row.stored;
      EXPECT_NEAR(normalisation(got, "std")[i], row.std[i], 1e-12) << row.stored;
    }
    // The normalisation is applied to the pixels, and written with the weights.
    const auto before = setup_of(kGood, {}).data.train->get(0, 0, false)->inputs.front();
    const auto after = got.data.train->get(0, 0, false)->inputs.front();
    EXPECT_NEAR(after[1][3][4].item<double>(), (before[1][3][4].item<double>() * 0.5 + 0.5 - row.mean[1]) / row.std[1],
                1e-5);
    const auto written = nlohmann::json::parse(model_texts(got).at("preprocessor_config.json"));
    EXPECT_EQ(written["image_mean"].get<List>(), normalisation(got, "mean"));
    EXPECT_EQ(written["image_std"].get<List>(), normalisation(got, "std"));
    EXPECT_EQ(written["size"], (nlohmann::json{{"height", 16}, {"width", 16}}));
    EXPECT_EQ(written["do_resize"], true);
  }
  weights.write(nlohmann::json::parse(rows[0].stored), "preprocessor_config.json");
  EXPECT_NO_THROW(with({"data.mean=[0.485, 0.456, 0.406]"}));
  EXPECT_EQ(message_of<ConfigError>([&] { with({"data.mean=[0.5, 0.5, 0.5]"}); }),
            fmt::format("--set data.mean=[0.5, 0.5, 0.5]: conflicts with image_mean = [0.485, 0.456, 0.406] in {}, "
                        "with which the weights were trained; remove data.mean, or change that file",
                        file));
  EXPECT_NE(message_of<ConfigError>([&] {
              setup_of(kGood, {"data.std=[1, 1, 1]"}, 1, weights.path());
            }).find("conflicts with image_std = [0.229, 0.224, 0.225] in " + file),
            std::string::npos);
  for (const auto* bad : {"{\"image_mean\": [1, 2]}", "{\"image_std\": 0}", "{\"image_mean\": \"half\"}", "[]"}) {
    weights.write(nlohmann::json::parse(bad), "preprocessor_config.json");
    EXPECT_EQ(message_of<CheckpointError>([&] { with({}); }).rfind(file + ": ", 0), 0U) << bad;
  }
}

TEST(Prepare, MeanAndStdAreForPixelsInBytes) {
  const auto file = [](const char* dtype, std::size_t bytes) {
    return data::testing_tools::safetensors({{"pixel_values", dtype, "8,3,8,8", std::string(8 * 192 * bytes, '\0')},
                                             {"labels", "I64", "8", bytes_of(std::vector<std::int64_t>(8, 1))}});
  };
  for (const bool bytes : {true, false}) {
    const Folder folder;
    for (const auto* split : {"train", "validation"})
      folder.write(std::string(split) + ".safetensors", bytes ? file("U8", 1) : file("F32", 4));
    auto text = kGood;
    text.replace(text.find("images = 60\nimage_size = 16\n"), 28, "");
    for (const std::string set : {"data.mean=[0.4, 0.5, 0.6]", "data.std=[1, 1, 1]", "data.mean=[0.5, 0.5, 0.5]"}) {
      const auto message = message_of<ConfigError>([&] {
        setup_of(text, {"data.name=tensors", "data.path=" + folder.path(), set});
      });
      const bool refused = !bytes && set.find("0.5, 0.5, 0.5") == std::string::npos;
      EXPECT_EQ(message.rfind("--set " + set + ": has no effect: the pixel_values in " + folder.path(), 0) == 0,
                refused)
          << message;
      if (!refused) {
        EXPECT_EQ(message, "no error");
      }
    }
  }
}

}  // namespace
}  // namespace trireme::train
