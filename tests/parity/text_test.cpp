// Contract C1 for data of texts. Length buckets: pairs of texts of very different lengths, tokenised by
// text_classification, train the same BERT in every layout, although ranks and microbatches pad their samples to
// different lengths. Packing: several conversations in a sample train as each of them alone would.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/data/dataset_wrapper.h"
#include "models/registry.h"
#include "tests/parity/sentences.h"
#include "trireme.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kTexts = 11, kMostTokens = 12;

/// A folder with a vocabulary of 9 tokens, while it lives.
class TextFolder {
 public:
  TextFolder() { write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n"); }
  ~TextFolder() { std::filesystem::remove_all(path_); }
  TextFolder(const TextFolder&) = delete;
  TextFolder& operator=(const TextFolder&) = delete;
  void write(const char* name, const std::string& text) const {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / name) << text;
  }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_ = std::filesystem::temp_directory_path() / fmt::format("trireme_texts_{}", ::getpid());
};

std::string words(std::int64_t number, std::int64_t seed) {
  std::string out;
  for (std::int64_t w = 0; w < number; ++w) out += fmt::format("{} ", static_cast<char>('a' + (seed + w * w) % 4));
  return out;
}

std::shared_ptr<void> options_of(const nn::ModelKind& kind,
                                 const std::vector<std::pair<std::string, FieldValue>>& values,
                                 const nn::DataSpec& data) {
  std::shared_ptr<void> options = kind.default_options();
  for (const auto& [key, value] : values) kind.fields().find(key)->set(options.get(), value);
  kind.resolve(options.get(), data);
  return options;
}

/// The tokens are divided over two ranks.
TaskLayout sequence_layout(const std::string& mode) {
  const bool own_axis = mode == "all_to_all" || mode == "ring_attn";
  return {(own_axis ? "sp2_" : "tp2_") + mode,
          "hybrid_parallel",
          fmt::format("{} = 2\nenable_sequence_parallelism = true\nsequence_parallelism_mode = \"{}\"",
                      own_axis ? "sp_size" : "tp_size", mode),
          2,
          false,
          3};
}

/// The training split of text_classification.
std::shared_ptr<data::Dataset> bucketed_texts() {
  const TextFolder folder;
  std::string table = "one\ttwo\tlabel\n";
  for (std::int64_t i = 0; i < kTexts; ++i)
    table += fmt::format("{}\t{}\t{}\n", words(1 + i * 5 % 7, i), words(i * 3 % 5, i + 1), i * 3 % kTokenIds);
  folder.write("train.tsv", table);
  folder.write("dev.tsv", table);
  datasets::TextClassificationOptions options;
  options.path = folder.path();
  options.tokenizer = folder.path();
  options.text = "one";
  options.text_pair = "two";
  options.max_tokens = kMostTokens;
  options.length_buckets = true;
  auto source = datasets::text_classification(options);
  return data::open(source, {.log = Log(1)}).train;
}

class ParityText : public testing::TestWithParam<TaskLayout> {};

TEST_P(ParityText, EqualOneProcess) {
  if (!GetParam().fits(world().size())) GTEST_SKIP() << "needs another number of ranks";
  const auto data = bucketed_texts();
  const auto spec = data->spec();
  ASSERT_EQ(spec.classes, kTokenIds);
  const auto kind = models::all_models().at("bert");
  const std::vector<std::pair<std::string, FieldValue>> values{
      {"hidden_size", std::int64_t{16}}, {"num_layers", std::int64_t{2}},
      {"num_heads", std::int64_t{4}},    {"intermediate_size", std::int64_t{12}},
      {"max_positions", kMostTokens},    {"dropout", 0.2},
      {"attention_dropout", 0.1},        {"initializer_range", 0.4}};
  const auto options = options_of(*kind, values, spec);
  const auto make = [=] { return std::shared_ptr<nn::Model>(kind->make(options.get())); };
  static const auto expected = train_by_hand(make, "classification", data);
  expect_same_on_sentences(GetParam(), make, kind->policy(options.get()), "classification", expected, data);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityText,
    testing::Values(TaskLayout{"dp", "torch_ddp", ""}, TaskLayout{"dp_micro3", "torch_ddp", "", 1, false, 3},
                    TaskLayout{"dp_whole", "torch_ddp", "", 1, false, 8},
                    TaskLayout{"replicas2", "data_parallel", "replicas = 2", 1, false, 4},
                    TaskLayout{"zero2", "low_level_zero", "stage = 2"}, TaskLayout{"gemini", "gemini", ""},
                    TaskLayout{"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 0", 2, false, 3},
                    TaskLayout{"pp2", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1", 2, false, 8},
                    TaskLayout{"tp2_pp2", "hybrid_parallel", "tp_size = 2\npp_size = 2\nmicrobatch_size = 3", 4, true,
                               8},
                    sequence_layout("split_gather"), sequence_layout("ring_attn")),
    [](const auto& value) { return value.param.name; });

/// Pairs of prompt and answer, 3 to 10 tokens each, in samples of kMostTokens.
std::shared_ptr<data::Dataset> packed_chats() {
  const TextFolder folder;
  std::string records;
  for (std::int64_t i = 0; i < 2 * kTexts; ++i)
    records += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n", words(1 + i % 3, i),
                           words(1 + i * 5 % 6, i + 1));
  folder.write("train.jsonl", records);
  folder.write("dev.jsonl", records);
  datasets::ChatOptions options;
  options.path = folder.path();
  options.tokenizer = folder.path();
  options.max_tokens = kMostTokens;
  options.packing = true;
  auto source = datasets::chat(options);
  return data::open(source, {.log = Log(1)}).train;
}

/// The same steps, with a row for each conversation.
class Unpacked : public data::DatasetWrapper {
 public:
  explicit Unpacked(std::shared_ptr<data::Dataset> packed) : DatasetWrapper(std::move(packed)) {}
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }
  [[nodiscard]] nn::DataSpec spec() override {
    return {.inputs = {{"input_ids", at::kLong, {-1}}, {"attention_mask", at::kLong, {-1}}},
            .targets = {{nn::kLabels, at::kLong, {-1}}}};
  }
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    std::vector<data::Sample> out;
    std::vector<std::int64_t> of_rows;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto& sample = samples[i];
      const auto& documents = sample.inputs["document_ids"];
      for (std::int64_t d = 1; d <= documents.max().item<std::int64_t>(); ++d) {
        const auto tokens = documents.eq(d);
        const auto ids = sample.inputs["input_ids"].masked_select(tokens);
        of_rows.push_back(indices[i]);
        out.push_back({{{"input_ids", ids}, {"attention_mask", at::ones_like(ids)}},
                       {{nn::kLabels, sample.targets[nn::kLabels].masked_select(tokens)}}});
      }
    }
    EXPECT_GT(out.size(), samples.size());
    return data::collate_padded(std::move(out), of_rows, spec(), {.values = {{nn::kLabels, -100}}});
  }
};

class ParityPacked : public testing::TestWithParam<std::tuple<std::string, TaskLayout>> {};

TEST_P(ParityPacked, EqualSeparateConversations) {
  const auto& [model, layout] = GetParam();
  if (!layout.fits(world().size())) GTEST_SKIP() << "needs another number of ranks";
  const auto data = packed_chats();
  std::vector<std::pair<std::string, FieldValue>> values{
      {"hidden_size", std::int64_t{16}}, {"num_layers", std::int64_t{2}},
      {"num_heads", std::int64_t{4}},    {"intermediate_size", std::int64_t{12}},
      {"max_positions", kMostTokens},    {"attention_dropout", 0.0},
      {"initializer_range", 0.4}};
  if (model == "llama") values.emplace_back("num_key_value_heads", std::int64_t{2});
  if (model == "gpt2") values.insert(values.end(), {{"dropout", 0.0}, {"embedding_dropout", 0.0}});
  const auto kind = models::all_models().at(model);
  const std::shared_ptr<void> options = options_of(*kind, values, data->spec());
  const auto make = [=] { return std::shared_ptr<nn::Model>(kind->make(options.get())); };
  static std::map<std::string, TrainedOnSentences> expected;
  if (!expected.contains(model)) expected[model] = train_by_hand(make, "causal_lm", std::make_shared<Unpacked>(data));
  expect_same_on_sentences(layout, make, kind->policy(options.get()), "causal_lm", expected[model], data);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityPacked,
    testing::Combine(testing::Values("llama", "gpt2"),
                     testing::Values(TaskLayout{"dp", "torch_ddp", ""},
                                     TaskLayout{"zero2", "low_level_zero", "stage = 2"},
                                     TaskLayout{"gemini", "gemini", ""},
                                     TaskLayout{"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 0", 2, false, 3},
                                     TaskLayout{"tp2_pp2", "hybrid_parallel",
                                                "tp_size = 2\npp_size = 2\nmicrobatch_size = 3", 4, true, 8},
                                     sequence_layout("split_gather"), sequence_layout("ring"),
                                     sequence_layout("all_to_all"), sequence_layout("ring_attn"))),
    [](const auto& value) { return std::get<0>(value.param) + "_" + std::get<1>(value.param).name; });

}  // namespace
}  // namespace trireme::tests
