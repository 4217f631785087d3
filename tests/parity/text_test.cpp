// Contract C1 for texts in length buckets: pairs of texts of very different lengths, tokenised by text_classification,
// train the same BERT in every layout. Ranks and microbatches pad their samples to different lengths.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/registry.h"
#include "tests/parity/sentences.h"
#include "trireme.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kTexts = 11, kMostTokens = 12;

/// The training split of text_classification.
std::shared_ptr<data::Dataset> bucketed_texts() {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("trireme_texts_{}", ::getpid());
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(folder / name) << text; };
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n");
  std::string table = "one\ttwo\tlabel\n";
  const auto words = [](std::int64_t number, std::int64_t seed) {
    std::string out;
    for (std::int64_t w = 0; w < number; ++w) out += fmt::format("{} ", static_cast<char>('a' + (seed + w * w) % 4));
    return out;
  };
  for (std::int64_t i = 0; i < kTexts; ++i)
    table += fmt::format("{}\t{}\t{}\n", words(1 + i * 5 % 7, i), words(i * 3 % 5, i + 1), i * 3 % kTokenIds);
  write("train.tsv", table);
  write("dev.tsv", table);
  datasets::TextClassificationOptions options;
  options.path = folder.string();
  options.tokenizer = folder.string();
  options.text = "one";
  options.text_pair = "two";
  options.max_tokens = kMostTokens;
  options.length_buckets = true;
  auto source = datasets::text_classification(options);
  auto data = data::open(source, {.log = Log(1)}).train;
  std::filesystem::remove_all(folder);
  return data;
}

class ParityText : public testing::TestWithParam<TaskLayout> {};

TEST_P(ParityText, EqualOneProcess) {
  if (!GetParam().fits(world().size())) GTEST_SKIP() << "needs another number of ranks";
  const auto data = bucketed_texts();
  const auto spec = data->spec();
  ASSERT_EQ(spec.classes, kTokenIds);
  const auto kind = models::all_models().at("bert");
  const std::shared_ptr<void> options = kind->default_options();
  const std::vector<std::pair<std::string, FieldValue>> values{
      {"hidden_size", std::int64_t{16}}, {"num_layers", std::int64_t{2}},
      {"num_heads", std::int64_t{4}},    {"intermediate_size", std::int64_t{12}},
      {"max_positions", kMostTokens},    {"dropout", 0.2},
      {"attention_dropout", 0.1},        {"initializer_range", 0.4}};
  for (const auto& [key, value] : values) kind->fields().find(key)->set(options.get(), value);
  kind->resolve(options.get(), spec);
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
                    TaskLayout{"tp2_split_gather", "hybrid_parallel",
                               "tp_size = 2\nenable_sequence_parallelism = true\n"
                               "sequence_parallelism_mode = \"split_gather\"",
                               2, false, 3},
                    TaskLayout{"sp2_ring_attn", "hybrid_parallel",
                               "sp_size = 2\nenable_sequence_parallelism = true\n"
                               "sequence_parallelism_mode = \"ring_attn\"",
                               2}),
    [](const auto& value) { return value.param.name; });

}  // namespace
}  // namespace trireme::tests
