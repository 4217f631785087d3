// Texts in blocks: documents, splits, masks, and every error.
#include <gtest/gtest.h>

#include <map>

#include "core/data/loader.h"
#include "datasets/text/documents.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

using datasets::TextOptions;
using testing_tools::bytes_of;
using Ids = std::vector<std::int64_t>;

/// The text of all blocks.
std::string blocks_of(Dataset& data) {
  std::string out;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const auto sample = *data.get(i, 0, false);
    EXPECT_EQ(values_of(sample.inputs["input_ids"]), values_of(sample.targets["labels"]));
    for (const auto id : values_of(sample.inputs["input_ids"])) out += static_cast<char>(id);
    out += '|';
  }
  return out;
}

class TextBlocks : public TextTest {
 protected:
  [[nodiscard]] TextOptions options(const std::string& train, const std::string& validation = "0123456789") const {
    TextOptions o;
    o.train = train;
    o.validation = write("validation.txt", validation);
    o.tokenizer = "bytes";
    o.block = 4;
    return o;
  }
};

TEST_F(TextBlocks, DocumentsFollowEachOther) {
  const auto text = write("a.txt",
                          "\xEF\xBB\xBF"
                          "ab\n\ncd\n  \nefg");
  const auto json = write("b.jsonl", "{\"text\":\"ab\",\"x\":1}\n\n{\"text\":\"\"}\n{\"text\":\"c\xC3\xA9\"}\n");
  const struct {
    std::string train, documents, blocks;
  } cases[] = {{text, "file", "ab\n\n|cd\n | \nef|"},
               {text, "lines", "ab\nc|d\nef|"},
               {text, "blank_lines", "ab\nc|d\nef|"},
               {json, "file", "ab\nc|"},
               {folder_.path("?.*"), "lines", "ab\nc|d\nef|g\nab|\nc\xC3\xA9|"}};
  for (const auto& c : cases) {
    auto o = options(c.train);
    o.documents = c.documents;
    const auto sets = open(datasets::text(o));
    EXPECT_EQ(blocks_of(*sets.train), c.blocks) << c.train << " " << c.documents;
    EXPECT_EQ(blocks_of(*sets.validation), "0123|4567|");
    EXPECT_EQ(sets.info.spec.vocabulary, 256);
    EXPECT_EQ(sets.info.spec.inputs, (std::vector<nn::SampleTensor>{{"input_ids", at::kLong, {4}}}));
  }
}

TEST_F(TextBlocks, AnEndTokenFollowsEachDocument) {
  auto o = options(write("a.txt", "a b\nc\n"), "a b c d e");
  o.documents = "lines";
  o.tokenizer = vocabulary();
  const auto sets = open(datasets::text(o));
  ASSERT_EQ(sets.train->size(), 1);
  EXPECT_EQ(values_of(sets.train->get(0, 0, true)->inputs["input_ids"]), (Ids{5, 6, 3, 7}));
}

/// Blocks of 4 of the documents "a b c", "d" and "e f", with an end token (3) behind each.
TEST_F(TextBlocks, DocumentsAreMasked) {
  auto o = options(write("a.txt", "a b c\nd\ne f\na\n"), "a b c d e");
  o.documents = "lines";
  o.tokenizer = vocabulary();
  o.document_mask = true;
  const auto sets = open(datasets::text(o));
  ASSERT_EQ(sets.train->size(), 2);
  const struct {
    Ids ids, documents, positions, labels;
  } expected[] = {{{5, 6, 7, 3}, {1, 1, 1, 1}, {0, 1, 2, 3}, {-100, 6, 7, 3}},
                  {{8, 3, 9, 10}, {1, 1, 2, 2}, {0, 1, 0, 1}, {-100, 3, -100, 10}}};
  for (std::int64_t i = 0; i < 2; ++i) {
    const auto sample = *sets.train->get(i, 0, true);
    EXPECT_EQ(values_of(sample.inputs["input_ids"]), expected[i].ids);
    EXPECT_EQ(values_of(sample.inputs["document_ids"]), expected[i].documents);
    EXPECT_EQ(values_of(sample.inputs["position_ids"]), expected[i].positions);
    EXPECT_EQ(values_of(sample.targets["labels"]), expected[i].labels);
  }
  o.block = 3;  // the second block begins within a document
  const auto shifted = open(datasets::text(o)).train->get(1, 0, true);
  EXPECT_EQ(values_of(shifted->inputs["document_ids"]), (Ids{1, 2, 2}));
  o.masking = 0.5;
  const auto masked = open(datasets::text(o)).train->get(1, 0, true);
  EXPECT_EQ(values_of(masked->inputs["position_ids"]), (Ids{0, 0, 1}));
  o.documents = "file";
  EXPECT_NE(error_of<ConfigError>(datasets::text(o)).find("document_mask: has no effect, because the training text is"),
            std::string::npos);
}

/// Pieces of a long file end between two lines with text, and are the whole text together.
TEST_F(TextBlocks, LongDocumentsAreReadInPieces) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += fmt::format("{}line \xC3\xA9 {}\n", i % 7 == 0 ? "\n" : "", i);
  const auto path = write("long.txt", text + "tail");
  std::string joined;
  std::vector<bool> ends;
  datasets::read_documents({path}, {.piece = 64}, [&](datasets::DocumentPiece piece) {
    EXPECT_LE(piece.text.size(), 64U);
    if (!joined.empty()) {
      EXPECT_EQ(joined.back(), '\n');
      EXPECT_TRUE(joined[joined.size() - 2] != '\n' && piece.text.front() != '\n');
    }
    joined += piece.text;
    ends.push_back(piece.ends);
  });
  EXPECT_EQ(joined, text + "tail");
  EXPECT_GT(ends.size(), 5U);
  EXPECT_TRUE(ends.back() && std::count(ends.begin(), ends.end(), true) == 1);
}

TEST_F(TextBlocks, DocumentsBetweenBlankLinesAreReadInPieces) {
  const auto path = write("long.txt", "\nfirst\nsecond\nthird\n  fourth\n\na line of its own\n \nx\ny");
  std::string read;
  datasets::read_documents({path}, {.documents = datasets::Documents::blank_lines, .piece = 13},
                           [&](const datasets::DocumentPiece& piece) {
                             read += fmt::format("{}:{}{}", piece.line, piece.text, piece.ends ? "#" : "|");
                           });
  EXPECT_EQ(read, "2:first\nsecond\n|4:third\n  fourth#7:a line of its own#9:x\ny#");
}

TEST_F(TextBlocks, TheValidationSplitIsTheEndOfTheOnlyText) {
  std::string text;
  for (char c = 'a'; c < 'u'; ++c) text += std::string(9, c) + '\n';  // 20 lines of 10
  auto o = options(write("a.txt", text));
  o.validation = "";
  o.block = 10;
  auto sets = open(datasets::text(o));
  EXPECT_EQ(sets.train->size(), 19);
  EXPECT_EQ(blocks_of(*sets.validation), "ttttttttt\n|") << "5 %";
  EXPECT_NE(sets.info.about.find("; blocks of 10; validation: the last 10 of 200 tokens"), std::string::npos)
      << sets.info.about;
  o.documents = "lines";
  o.validation_share = 0.13;  // 26 of 199 tokens; the document that begins nearest is 29 from the end
  sets = open(datasets::text(o));
  EXPECT_EQ(sets.train->size(), 17);
  EXPECT_EQ(blocks_of(*sets.validation), "rrrrrrrrr\n|sssssssss\n|");
  o.documents = "file";
  sets = open(datasets::text(o));
  EXPECT_EQ(sets.train->size(), 17);
  EXPECT_EQ(blocks_of(*sets.validation), "rrrrr\nssss|sssss\ntttt|") << "174 to 200: exact";
}

TEST_F(TextBlocks, MegatronFilesAndFolders) {
  const std::vector<std::uint16_t> ids{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
  const auto index = std::string("MMIDIDX\0\0", 9) + bytes_of(Ids{1}) + '\x08' + bytes_of(Ids{2, 2}) +
                     bytes_of(std::vector<std::int32_t>{3, 5}) + bytes_of(Ids{0, 6}) + bytes_of(Ids{0, 2});
  folder_.write("set/train.idx", index);
  folder_.write("set/train.bin", bytes_of(ids));
  static_cast<void>(write("set/valid/part-1.txt", "abcd"));
  static_cast<void>(write("set/valid/part-2.txt", "efgh"));
  for (const auto* hidden : {".part-2.txt", "._part-1.txt", ".old/part-1.txt"})
    static_cast<void>(write(std::string("set/valid/") + hidden, "hidden"));
  auto o = options("");
  o.validation = "";
  o.path = folder_.path("set");
  auto sets = open(datasets::text(o));
  EXPECT_EQ(blocks_of(*sets.train), "abcd|efgh|");
  EXPECT_EQ(blocks_of(*sets.validation), "abcd|\nefg|");
  for (const auto* name : {"set/train", "set/train.bin", "set/train.idx"}) {
    sets = open(datasets::text(options(folder_.path(name))));
    EXPECT_EQ(blocks_of(*sets.train), "abcd|efgh|") << name;
  }
  o.validation_share = 0.5;
  EXPECT_NE(error_of<ConfigError>(datasets::text(o)).find("validation_share: has no effect"), std::string::npos);
  o.validation_share.reset();
  o.tokenizer = vocabulary();
  EXPECT_EQ(testing_tools::message_of([&] { open(datasets::text(o)).train->get(0, 0, true); }),
            folder_.path("set/train") +
                ": token 0 has the id 97, but the tokenizer has 12 tokens; name the tokenizer "
                "of these tokens with data.tokenizer");
}

TEST_F(TextBlocks, MasksAreThoseOfBert) {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += std::string("abcdefg").substr(static_cast<std::size_t>(i * i % 7), 1) + (i % 50 == 49 ? "\n" : " ");
  auto o = options(write("a.txt", text), text);
  o.tokenizer = vocabulary();
  o.documents = "lines";
  o.block = 100;
  auto plain = open(datasets::text(o));
  o.masking = 0.2;
  auto sets = open(datasets::text(o));
  EXPECT_TRUE(sets.info.spec.ignored_labels);
  double chosen = 0, masked = 0, same = 0, all = 0;
  for (std::int64_t i = 0; i < sets.train->size(); ++i) {
    const auto sample = *sets.train->get(i, 3, true);
    const auto ids = values_of(sample.inputs["input_ids"]), labels = values_of(sample.targets["labels"]);
    const auto original = values_of(plain.train->get(i, 0, true)->inputs["input_ids"]);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      if (original[t] == 3 || labels[t] == -100) {
        EXPECT_TRUE(labels[t] == -100 && ids[t] == original[t]) << "special tokens stay";
      } else {
        EXPECT_EQ(labels[t], original[t]);
        ++chosen;
        masked += ids[t] == 4;
        same += ids[t] == original[t];
        EXPECT_TRUE(ids[t] >= 0 && ids[t] < 12);
      }
      all += original[t] != 3;
    }
  }
  EXPECT_NEAR(chosen / all, 0.2, 0.01);
  EXPECT_NEAR(masked / chosen, 0.8 + 0.1 / 12, 0.02);
  EXPECT_NEAR(same / chosen, 0.1 + 0.1 / 12, 0.02);
  const auto labels = [](Dataset& data, std::int64_t index, std::int64_t epoch, bool augment) {
    return values_of(data.get(index, epoch, augment)->targets["labels"]);
  };
  EXPECT_EQ(labels(*sets.train, 5, 3, true), labels(*open(datasets::text(o)).train, 5, 3, true));
  EXPECT_NE(labels(*sets.train, 5, 3, true), labels(*sets.train, 5, 4, true));
  EXPECT_EQ(labels(*sets.validation, 5, 3, false), labels(*sets.validation, 5, 4, false));
  EXPECT_NE(labels(*sets.validation, 5, 0, false), labels(*sets.validation, 6, 0, false));
}

/// The same batches, whether a rank reads the samples itself or gets them from another.
TEST_F(TextBlocks, SamplesAreRows) {
  auto o = options(write("a.txt", "abcdefghijkl"));
  const auto sets = open(datasets::text(o));
  ASSERT_NE(sets.train->rows(), nullptr);
  Loader loader(sets.train, {.global_batch = 2, .micro_batch = 2});
  loader.start_epoch(0);
  const auto step = *loader.next();
  EXPECT_EQ(values_of(step.micro.front().inputs["input_ids"]), (Ids{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}));
  EXPECT_EQ(step.elements, 0) << "nothing varies";
}

TEST_F(TextBlocks, Errors) {
  const struct {
    std::string name, text, message;
  } cases[] = {
      {"a.txt", "abc", "a.txt: 3 tokens are fewer than a block of 4; lower data.block, or add text"},
      {"a.txt", "", "a.txt: is empty"},
      {"a.txt", "ab\ncd\xFF",
       "a.txt:2: byte 3 of this line, 0xFF, is not UTF-8; convert the file, as with `iconv -f latin1 -t utf-8`"},
      {"a.jsonl", "{\"text\":\"a\"}\n\nx",
       "a.jsonl:3: the object of this line, line 1, column 1: not valid JSON; each line holds one, as {\"text\": "
       "\"...\"}"},
      {"a.jsonl", "{\"text\":\"a\"}\n{\"text\":" + std::string(200'000, '['),
       "a.jsonl:2: the object of this line, line 1, column 136: nested deeper than 128 levels; each line holds one, as "
       "{\"text\": \"...\"}"},
      {"a.jsonl", "[1]", "a.jsonl:1: not a JSON object; each line holds one, as {\"text\": \"...\"}"},
      {"a.jsonl", "{\"tex\":\"a\"}",
       "a.jsonl:1: there is no text under \"text\", which data.text_key names (the keys: tex); did you mean \"tex\"?"},
      {"a.jsonl", "{\"text\":5}\n", "a.jsonl:1: \"text\" is 5; it must be a string"}};
  for (const auto& c : cases) {
    auto o = options(write(c.name, c.text));
    EXPECT_EQ(error_of(datasets::text(o)), c.message);
  }
  auto o = options(folder_.path("none.txt"));
  EXPECT_EQ(error_of(datasets::text(o)), "none.txt: no such file");
  o.train = folder_.path("none*.txt");
  EXPECT_EQ(error_of(datasets::text(o)),
            "none*.txt: no file matches; write train-{0000..0146}.txt, train-*.txt, or a folder");
  o = options(write("c.txt", std::string(64, 'x')));
  o.validation = "";
  o.validation_share = 0.05;
  EXPECT_EQ(error_of(datasets::text(o)),
            "c.txt: 3 tokens for the validation split are fewer than a block of 4; raise data.validation_share, lower "
            "data.block, or add text");
  o = options(write("a.txt", "abcdefgh"));
  o.masking = 0.15;
  EXPECT_NE(error_of<ConfigError>(datasets::text(o))
                .find("masking: needs a tokenizer with a mask token, which bytes has not"),
            std::string::npos);
  o.masking = 0;
  o.text_key = "content";
  EXPECT_NE(error_of<ConfigError>(datasets::text(o)).find("text_key: has no effect"), std::string::npos);
  o = options(write("a.jsonl", "{\"text\":\"abcdefgh\"}"));
  o.validation = o.train;
  o.documents = "lines";
  EXPECT_NE(error_of<ConfigError>(datasets::text(o)).find("documents: has no effect"), std::string::npos);
  o.path = folder_.path();
  EXPECT_NE(error_of<ConfigError>(datasets::text(o)).find("conflicts with path"), std::string::npos)
      << error_of<ConfigError>(datasets::text(o));
  o.train = o.path = "";
  EXPECT_NE(error_of<ConfigError>(datasets::text(o)).find("train: is required"), std::string::npos);
  auto from_weights = quiet();
  from_weights.weights = folder_.path("weights");
  auto unset = options(write("a.txt", "abcdefgh"));
  unset.tokenizer.reset();
  static_cast<void>(write("weights/model.safetensors", testing_tools::safetensors({})));
  EXPECT_NE(error_of<ConfigError>(datasets::text(unset), from_weights).find("tokenizer: is required"),
            std::string::npos)
      << "weights were trained on the tokens of some tokenizer";
  o.validation = "";
  o.path = folder_.path("set");
  static_cast<void>(write("set/dev.txt", "abcd"));
  EXPECT_EQ(error_of(datasets::text(o)),
            "set: has set/dev.txt, but no text of the train split: train.txt or train.jsonl");
  o.path = folder_.path("tables");
  static_cast<void>(write("tables/train.tsv", "text\tlabel\n"));
  EXPECT_EQ(error_of(datasets::text(o)),
            "tables: has train.tsv, a table; data.name = \"text_classification\" reads tables, \"text\" reads .txt and "
            ".jsonl");
  auto lost = options(write("a.txt", "abcdefgh"));
  lost.tokenizer = folder_.path("lost");
  EXPECT_EQ(
      error_of(datasets::text(lost)),
      "lost: no such file or folder; data.tokenizer names one with tokenizer.json or vocab.txt, or a model in the "
      "cache of the Hugging Face Hub, or \"bytes\"");
  o.path = folder_.path("parts");
  static_cast<void>(write("parts/validation-00000-of-00001.txt", "abcdefgh"));
  static_cast<void>(write("parts/other.txt", "abcdefgh"));
  static_cast<void>(write("parts/.train-00000-of-00001.csv", "hidden"));
  EXPECT_EQ(
      error_of(datasets::text(o)),
      "parts: validation-00000-of-00001.txt seems to be a part of one split, but all files of the folder would be "
      "trained on; name those of each split, such as data.train = \"parts/train-*.txt\" and data.validation = "
      "\"parts/validation-*.txt\"");
}

}  // namespace
}  // namespace trireme::data
