// Ids and texts equal those of Hugging Face's tokenizers (tests/golden/make/make_tokenizers.py).
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "core/base/environment.h"
#include "tests/unit/tokenizers/fixtures.h"
#include "tokenizers/tokenizer.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

class Golden : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = load_tokenizer(kFixtures + GetParam());
  nlohmann::json expected_ = fixture_json("expected.json").at(GetParam());
};

TEST_P(Golden, IdsAndTextsOfDifficultLines) {
  const auto lines = difficult_lines();
  const auto ids = words_of(expected_.at("ids")), texts = words_of(expected_.at("texts"));
  ASSERT_EQ(lines.size(), 500U);
  ASSERT_EQ(ids.size(), lines.size());
  ASSERT_EQ(texts.size(), lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto got = tokenizer_->encode(lines[i]);
    EXPECT_EQ(short_hash(bytes_of(got)), ids[i]) << "line " << i << ": " << lines[i].substr(0, 200);
    EXPECT_EQ(short_hash(tokenizer_->decode(got)), texts[i]) << "line " << i << ": " << lines[i].substr(0, 200);
  }
  EXPECT_EQ(tokenizer_->vocabulary(), expected_.at("vocabulary"));
}

TEST_P(Golden, TextsOfRandomIds) {
  const auto texts = words_of(expected_.at("random_texts"));
  const auto& all = expected_.at("random_ids");
  ASSERT_EQ(all.size(), texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(short_hash(tokenizer_->decode(all[i].get<Ids>())), texts[i]) << all[i];
}

TEST_P(Golden, SamplesOfOneAndTwoTexts) {
  for (const auto& [key, hash] : expected_.at("samples").items()) {
    const auto sample = nlohmann::json::parse(key);  // [text, second text or null, most tokens]
    const auto text = sample[0].get<std::string>();
    const auto second = sample[1].is_null() ? std::nullopt : std::optional(sample[1].get<std::string>());
    const auto encoded = tokenizer_->encode_sample(text, second, sample[2]);
    ASSERT_EQ(encoded.ids.size(), encoded.types.size());
    auto numbers = encoded.ids;
    numbers.push_back(-1);
    numbers.insert(numbers.end(), encoded.types.begin(), encoded.types.end());
    EXPECT_EQ(short_hash(bytes_of(numbers)), hash) << key;
  }
}

// Ids and offsets in characters, with special tokens (tests/golden/make/make_offsets.py).
TEST_P(Golden, OffsetsOfDifficultLines) {
  constexpr std::size_t kLinesOfHash = 10;
  const auto lines = difficult_lines();
  const auto wanted = words_of(fixture_json("offsets.json").at(GetParam()));
  ASSERT_EQ(wanted.size() * kLinesOfHash, lines.size());
  for (std::size_t group = 0; group < wanted.size(); ++group) {
    std::vector<std::int32_t> numbers;
    for (std::size_t i = group * kLinesOfHash; i < (group + 1) * kLinesOfHash; ++i) {
      const auto chars = chars_before(lines[i]);
      for (const auto& token : tokenizer_->tokenize(lines[i], std::nullopt, true)) {
        numbers.push_back(token.id);
        for (const auto byte : {token.bytes.begin, token.bytes.end})
          numbers.push_back(static_cast<std::int32_t>(chars.at(byte)));
      }
      numbers.push_back(-1);
    }
    EXPECT_EQ(short_hash(bytes_of(numbers)), wanted[group]) << "lines from " << group * kLinesOfHash;
  }
}

TEST_P(Golden, FilesMakeTheSameTokenizerAgain) {
  const auto again = load_tokenizer(tokenizer_->files());
  EXPECT_EQ(again->digest(), tokenizer_->digest());
  EXPECT_EQ(again->encode("The ship has [MASK] oars."), tokenizer_->encode("The ship has [MASK] oars."));
}

TEST_P(Golden, ThreadsShareATokenizer) {
  const auto lines = difficult_lines();
  const auto other = load_tokenizer(kFixtures + GetParam());
  std::vector<Ids> alone;
  for (const auto& line : lines) alone.push_back(other->encode(line));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (auto& count : wrong)
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < lines.size(); ++i) count += tokenizer_->encode(lines[i]) != alone[i] ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden, testing::ValuesIn(fixture_names()),
                         [](const auto& test) { return test.param; });

TEST(Sst2, IdsOfAllSentences) {
  const auto data = environment("TRIREME_TEST_DATA");
  if (data.empty())
    GTEST_SKIP()
        << "NOT TESTED: TRIREME_TEST_DATA names no folder with sst2/train.tsv, sst2/dev.tsv and bert/vocab.txt";
  const auto expected = fixture_json("sst2.json");
  const auto tokenizer = load_tokenizer(data + "/bert/vocab.txt");
  std::string bytes;
  std::int64_t sentences = 0;
  for (const auto* name : {"/sst2/train.tsv", "/sst2/dev.tsv"}) {
    std::ifstream file(data + name);
    std::string line;
    std::getline(file, line);  // the names of the columns
    for (; std::getline(file, line); ++sentences) {
      auto ids = tokenizer->encode_sample(std::string_view(line).substr(0, line.find('\t')), std::nullopt, 512).ids;
      ids.push_back(-1);
      bytes += bytes_of(ids);
    }
  }
  EXPECT_EQ(sentences, expected.at("sentences"));
  EXPECT_EQ(fmt::format("{:016x}", random::hash(bytes)), expected.at("hash"));
}

}  // namespace
}  // namespace trireme::tokenizers
