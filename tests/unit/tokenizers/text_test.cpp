// What the golden files do not show: the tokenizer of bytes, meanings of special tokens, files and errors of texts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "tests/unit/tokenizers/fixtures.h"
#include "tokenizers/pattern.h"
#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {
namespace {

TEST(Bytes, AreTheirOwnIds) {
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes->encode("a\xC3\xA9\n"), (Ids{97, 0xC3, 0xA9, 10}));
  EXPECT_EQ(bytes->decode(Ids{97, 0xC3, 0xA9, 10}), "a\xC3\xA9\n");
  EXPECT_EQ(bytes->decode(Ids{0xC3, 97, 0xE4, 0xBD, 256, -1}),
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD");  // one U+FFFD a sequence
  EXPECT_EQ(bytes->vocabulary(), 256);
  EXPECT_TRUE(bytes->files().empty());
  EXPECT_EQ(bytes->about(), "bytes, 256 tokens");
  const auto sample = bytes->encode_sample("abc", "de", 4);
  EXPECT_EQ(sample.ids, (Ids{97, 98, 100, 101}));
  EXPECT_EQ(sample.types, (std::vector<std::int8_t>{0, 0, 1, 1}));
}

TEST(SpecialTokens, HaveTheMeaningsOfTheFiles) {
  const auto bert = load_tokenizer(kFixtures + "bert_uncased")->special();
  EXPECT_EQ(bert.padding, 0);
  EXPECT_EQ(bert.unknown, 1);
  EXPECT_EQ(bert.cls, 2);
  EXPECT_EQ(bert.sep, 3);
  EXPECT_EQ(bert.mask, 4);
  EXPECT_EQ(bert.end, std::nullopt);
  const auto llama = load_tokenizer(kFixtures + "llama2")->special();
  EXPECT_EQ(llama.unknown, 0);
  EXPECT_EQ(llama.begin, 1);
  EXPECT_EQ(llama.end, 2);
  EXPECT_EQ(llama.padding, std::nullopt);
  EXPECT_EQ(load_tokenizer(kFixtures + "gpt2")->special().end, 0);

  auto files = fixture_files("llama2");
  files["tokenizer_config.json"] =
      R"({"pad_token": {"content": "</s>"}, "bos_token": null, "add_bos_token": false, "add_eos_token": true})";
  const auto configured = load_tokenizer(files);
  EXPECT_EQ(configured->special().padding, 2);
  EXPECT_EQ(configured->special().begin, std::nullopt);
  EXPECT_EQ(configured->encode_sample("", std::nullopt, 4).ids, Ids{2});
  EXPECT_EQ(configured->encode_sample("", "", 4).ids, (Ids{2, 2}));
  files["tokenizer_config.json"] = R"({"add_eos_token": true})";
  EXPECT_EQ(load_tokenizer(files)->encode_sample("", std::nullopt, 4).ids, (Ids{1, 2})) << "BOS stays";
  EXPECT_NE(configured->digest(), load_tokenizer(kFixtures + "llama2")->digest());
}

TEST(Config, OfFilesWithoutTokenizerJson) {
  auto files = fixture_files("bert_uncased");
  const auto ids = [&](const std::string& config, const char* text) {
    files["tokenizer_config.json"] = config;
    return load_tokenizer(files)->encode(text);
  };
  const auto lower = ids("{}", "the ship");
  EXPECT_EQ(ids(R"({"do_lower_case": true})", "THE ship"), lower);
  EXPECT_NE(ids(R"({"do_lower_case": false})", "THE ship"), lower);
  EXPECT_EQ(ids(R"({"strip_accents": null})", "th\xC3\xA9 ship"), lower);
  EXPECT_NE(ids(R"({"strip_accents": false})", "th\xC3\xA9 ship"), lower);
  // As transformers 4 writes it.
  const auto stored = [](const char* id) {
    return std::string(R"({"added_tokens_decoder": {")") + id +
           R"(": {"content": "[MASK]", "lstrip": true, "rstrip": false, "normalized": false,
                   "single_word": false, "special": true}}})";
  };
  EXPECT_EQ(ids(stored("4"), "[MASK]"), Ids{4});
  EXPECT_THROW(ids(stored("5"), "[MASK]"), DataError);
}

TEST(Folder, IsFoundByAnyOfItsFiles) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("tokenizer_folder-" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder / name, std::ios::binary) << content;
  };
  EXPECT_THROW(load_tokenizer(folder.string()), DataError);
  write("vocab.txt", fixture_files("bert_cased").at("vocab.txt"));
  EXPECT_EQ(load_tokenizer(folder.string())->about(), "WordPiece, 300 tokens");
  write("vocab.json", fixture_files("gpt2").at("vocab.json"));
  EXPECT_EQ(load_tokenizer(folder.string())->about(), "WordPiece, 300 tokens");  // merges.txt is missing
  write("merges.txt", fixture_files("gpt2").at("merges.txt"));
  EXPECT_EQ(load_tokenizer(folder.string())->about(), "byte-level BPE, 400 tokens");
  EXPECT_EQ(load_tokenizer((folder / "merges.txt").string())->about(), "byte-level BPE, 400 tokens");
  EXPECT_EQ(load_tokenizer((folder / "vocab.txt").string())->about(), "WordPiece, 300 tokens");
  write("tokenizer.json", fixture_files("llama2").at("tokenizer.json"));
  EXPECT_EQ(load_tokenizer(folder.string())->about(), "BPE, 520 tokens");
  EXPECT_EQ(load_tokenizer((folder / "vocab.json").string())->files().size(), 2U);
  std::filesystem::rename(folder / "tokenizer.json", folder / "another.json");
  EXPECT_EQ(load_tokenizer((folder / "another.json").string())->files().begin()->first, "tokenizer.json");
  EXPECT_THROW(load_tokenizer((folder / "tokenizer.model").string()), DataError);
  std::filesystem::remove_all(folder);
}

TEST(Digest, DependsOnEachByteOfTheFiles) {
  const auto files = fixture_files("gpt2");
  auto changed = files;
  EXPECT_EQ(load_tokenizer(changed)->digest(), load_tokenizer(files)->digest());
  changed.at("merges.txt").resize(changed.at("merges.txt").rfind('\n', changed.at("merges.txt").size() - 2) + 1);
  EXPECT_NE(load_tokenizer(changed)->digest(), load_tokenizer(files)->digest());
}

TEST(Texts, ThatAreNotUtf8AreRefusedByTheirByte) {
  for (const auto* name : {"bert_uncased", "gpt2", "llama2"}) {
    const auto tokenizer = load_tokenizer(kFixtures + name);
    for (const std::string text : {"abc\xFF", "abc\xC3", "abc\xED\xA0\x80", "abc\xF4\x90\x80\x80", "abc\xC0\x80"})
      for (const bool as_pair : {false, true}) try {
          tokenizer->encode_sample(as_pair ? "abc" : text,
                                   as_pair ? std::optional<std::string_view>(text) : std::nullopt, 10);
          ADD_FAILURE() << name;
        } catch (const DataError& error) {
          EXPECT_NE(std::string(error.what()).find("byte 3 of the text"), std::string::npos) << error.what();
        }
  }
}

TEST(Samples, NeedPlaceForTheirSpecialTokens) {
  const auto bert = load_tokenizer(kFixtures + "bert_uncased");
  EXPECT_EQ(bert->encode_sample("the ship", std::nullopt, 2).ids, (Ids{2, 3}));
  EXPECT_THROW(bert->encode_sample("the ship", std::nullopt, 1), UsageError);
  EXPECT_THROW(bert->encode_sample("the ship", "the", 2), UsageError);
}

// What a tokenizer puts behind a sample would end it; what the prompt itself has there stays.
TEST(Prompts, GoOn) {
  const auto bert = load_tokenizer(kFixtures + "bert_uncased");
  const auto text = bert->encode("the ship");
  Ids want{2};
  want.insert(want.end(), text.begin(), text.end());
  EXPECT_EQ(bert->encode_prompt("the ship"), want);
  want.push_back(3);
  EXPECT_EQ(bert->encode_prompt("the ship[SEP]"), want);
  auto files = fixture_files("llama2");
  files["tokenizer_config.json"] = R"({"add_eos_token": true})";
  const auto llama = load_tokenizer(files);
  const auto sample = llama->encode_sample("the</s></s>", std::nullopt, 100).ids;
  ASSERT_EQ((Ids{sample.end() - 3, sample.end()}), (Ids{2, 2, 2}));
  EXPECT_EQ(llama->encode_prompt("the</s></s>"), (Ids{sample.begin(), sample.end() - 1}));
  EXPECT_EQ(llama->encode_prompt("<s>"), (Ids{1, 1}));
  EXPECT_EQ(llama->encode_prompt(""), Ids{1});
}

TEST(LongTexts, OfOnePieceTakeNoQuadraticTime) {
  const auto llama = load_tokenizer(kFixtures + "llama2");
  std::string text;
  while (text.size() < 1'000'000) text += "the ship ";
  const auto ids = llama->encode(text);
  EXPECT_EQ(llama->decode(ids), text);
}

/// The limit of an expression's work holds for each match, not for the text.
TEST(LongTexts, MayHaveMoreWorkThanOneMatch) {
  const auto expression = Pattern::of_expression("(?:a?){20}a{20}");  // a million steps a match
  std::string text;
  for (int i = 0; i < 24; ++i) text += std::string(20, 'a') + ' ';
  EXPECT_EQ(expression.find(text).size(), 24U);
  EXPECT_THROW(static_cast<void>(Pattern::of_expression("(?:a?){28}a{28}").find(std::string(28, 'a'))), DataError);
  EXPECT_EQ(Pattern::of_expression("(?<=a)b|a").find("abb").size(), 2U) << "what is before a match is still seen";
}

}  // namespace
}  // namespace trireme::tokenizers
