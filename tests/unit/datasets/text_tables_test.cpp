// Tables of texts with classes: formats, columns, samples and every error.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "core/data/loader.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

using datasets::text_classification;
using datasets::TextClassificationOptions;
using Ids = std::vector<std::int64_t>;

class TextTables : public TextTest {
 protected:
  [[nodiscard]] TextClassificationOptions options(const std::string& ending, const std::string& train,
                                                  const std::string& validation) const {
    TextClassificationOptions o;
    o.train = write("train" + ending, train);
    o.validation = write("validation" + ending, validation);
    o.tokenizer = vocabulary();
    return o;
  }
  [[nodiscard]] std::string error_in_train(const std::string& ending, const std::string& train,
                                           TextClassificationOptions more = {}) const {
    auto o = options(ending, train, "sentence\tlabel\na\t0\n");
    o.text = more.text;
    o.text_pair = more.text_pair;
    o.label = more.label;
    return error_of(text_classification(o));
  }
};

TEST_F(TextTables, FormatsGiveTheSameSamples) {
  const struct {
    const char *ending, *text;
  } cases[] = {{".tsv", "label\tsentence\n1\ta b\n\n0\t\"c\" d\n1\tg, b\n"},
               {".tsv", "\xEF\xBB\xBFlabel\tsentence\r\n1\ta b\r\n0\t\"c\" d\r\n1\tg, b"},
               {".csv", "sentence,label,note\na b,1,\n\"\"\"c\"\" d\",0,\"one,\ntwo\"\n\n\"g, b\",1,x"},
               {".jsonl",
                "{\"label\":1,\"sentence\":\"a b\"}\n\n{\"sentence\":\"\\\"c\\\" d\",\"label\":\"0\"}\n"
                "{\"sentence\":\"g, b\",\"label\":1}"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const auto sets = open(text_classification(options(c.ending, c.text, c.text)));
    EXPECT_EQ(sets.info.spec.class_names, (std::vector<std::string>{"0", "1"}));
    EXPECT_EQ(sets.info.spec.classes, 2);
    EXPECT_EQ(sets.info.spec.vocabulary, 12);
    EXPECT_EQ(sets.test, nullptr);
    ASSERT_EQ(sets.train->size(), 3);
    const Ids expected[] = {{2, 5, 6, 3}, {2, 1, 7, 1, 8, 3}, {2, 11, 1, 6, 3}};
    const std::int64_t labels[] = {1, 0, 1};
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto sample = *sets.train->get(i, 0, true);
      EXPECT_EQ(values_of(sample.inputs["input_ids"]), expected[i]);
      EXPECT_EQ(values_of(sample.inputs["attention_mask"]), Ids(expected[i].size(), 1));
      EXPECT_EQ(values_of(sample.inputs["token_type_ids"]), Ids(expected[i].size(), 0));
      EXPECT_EQ(testing_tools::label_of(sample), labels[i]);
    }
  }
}

TEST_F(TextTables, PairsAreCutAndPadded) {
  auto o = options(".tsv", "one\ttwo\tclass\na b c d\te\tyes\na\tb\tno\n", "one\ttwo\tclass\nc\td\tno\n");
  o.text = "one";
  o.text_pair = "two";
  o.label = "class";
  o.max_tokens = 6;
  o.pad_multiple = 6;
  const auto sets = open(text_classification(o));
  EXPECT_EQ(sets.info.spec.class_names, (std::vector<std::string>{"no", "yes"}));
  EXPECT_EQ(sets.info.spec.longest, 6);
  EXPECT_EQ(sets.info.spec.longest_key, "data.max_tokens");
  Loader loader(sets.train, {.global_batch = 2, .micro_batch = 2});
  loader.start_epoch(0);
  const auto batch = loader.next()->micro.front();
  EXPECT_EQ(values_of(batch.inputs["input_ids"]), (Ids{2, 5, 6, 3, 9, 3, 2, 5, 3, 6, 3, 0}));
  EXPECT_EQ(values_of(batch.inputs["attention_mask"]), (Ids{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(values_of(batch.inputs["token_type_ids"]), (Ids{0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(values_of(batch.targets["labels"]), (Ids{1, 0}));
}

TEST_F(TextTables, AFolderHasSplitsByTheirUsualNames) {
  for (const auto* name : {"train.tsv", "dev.tsv"})
    static_cast<void>(write(std::string("set/") + name, "text\tlabel\na\t-5\nb\t10\nc\t9\n"));
  static_cast<void>(write("set/test.tsv", "index\ttext\n0\ta\n"));
  TextClassificationOptions o;
  o.path = folder_.path("set");
  o.tokenizer = "bytes";
  auto source = text_classification(o);
  std::FILE* file = std::tmpfile();
  const auto sets = data::open(source, {.log = Log(0, file)});
  EXPECT_EQ(sets.info.spec.class_names, (std::vector<std::string>{"-5", "9", "10"})) << "sorted as numbers";
  EXPECT_EQ(sets.test, nullptr);
  EXPECT_EQ(sets.info.spec.input("token_type_ids"), nullptr) << "neither pairs nor a cls token";
  EXPECT_EQ(values_of(sets.validation->get(1, 0, false)->inputs["input_ids"]), Ids{'b'});
  std::string said(1000, '\0');
  std::rewind(file);
  said.resize(std::fread(said.data(), 1, said.size(), file));
  std::fclose(file);
  EXPECT_EQ(said, "data: " + o.path + "/test.tsv has no column \"label\": there is no test split\n");
  static_cast<void>(write("set/test.tsv", "text\tlabel\na\t-1\nb\t-1\n"));
  EXPECT_EQ(open(text_classification(o)).test, nullptr) << "GLUE's hidden labels";
  static_cast<void>(write("set/test.tsv", "text\tlabel\na\t\nb\t \n"));
  EXPECT_EQ(error_of(text_classification(o)),
            "set/test.tsv:2: the label is blank; write the class there, or remove the row")
      << "blank in two ways: not hidden, but wrong";
  static_cast<void>(write("set/test.tsv", "text\tlabel\na\t\nb\t\n"));
  EXPECT_EQ(open(text_classification(o)).test, nullptr) << "blank hidden labels";
  static_cast<void>(write("set/validation.csv", "text,label\na,9\n"));
  EXPECT_EQ(error_of(text_classification(o)),
            "set: has validation.csv and dev.tsv, which mean the same split; name the one to use with data.train, "
            "data.validation and data.test");
}

TEST_F(TextTables, ErrorsNameFileAndLine) {
  TextClassificationOptions pair, other, twice;
  pair.text_pair = "secnd";
  twice.text = "label";
  other.text = "phrase";
  const struct {
    std::string ending, text, message;
    TextClassificationOptions more = {};
  } cases[] = {
      {".tsv", "", "train.tsv: is empty"},
      {".tsv", "sentence\tlabel\n", "train.tsv: has no rows of samples"},
      {".jsonl", "\n\n", "train.jsonl: has no rows of samples"},
      {".tsv", "sentence\tclass\na\t0\n",
       "train.tsv:1: there is no column \"label\", which data.label names (the columns: sentence, class)"},
      {".tsv", "a\tlabel\nx\t0\n",
       "train.tsv:1: there is no column \"sentence\" or \"text\" (the columns: a, label); name the column of the text "
       "with data.text"},
      {".csv", "sentence;label\nx;0\n",
       "train.csv:1: there is no column \"sentence\" or \"text\" (the columns: sentence;label); name the column of the "
       "text with data.text; it has semicolons in its name: a .csv file has commas between columns, and a .tsv file "
       "tabs"},
      {".csv", "text,sentence,label\nx,y,0\n",
       "train.csv:1: there are columns \"sentence\" and \"text\" (the columns: text, sentence, label); name the column "
       "of the text with data.text"},
      {".tsv", "sentence\tlabel\tlabel\na\t0\t1\n",
       "train.tsv:1: the column \"label\", which data.label names, occurs 2 times; rename all but one"},
      {".csv", "text,second,label\na,b,0\n",
       "train.csv:1: there is no column \"secnd\", which data.text_pair names (the columns: text, second, label); "
       "did you mean \"second\"?",
       pair},
      {".jsonl", "{\"text\":\"a\",\"label\":0}\n",
       "train.jsonl:1: there is no column \"phrase\", which data.text names (the columns: label, text)", other},
      {".tsv", "sentence\tlabel\na\t0\n",
       "train.tsv:1: data.text and data.label name the same column, \"label\"; name another one in one of them", twice},
      {".tsv", "sentence\tlabel\na\t0\nb c\n", "train.tsv:3: 1 field, but the first row names 2 (sentence, label)"},
      {".csv", "sentence,label\n\"a\nb\",0\nc,d,1\n",
       "train.csv:4: 3 fields, but the first row names 2 (sentence, label)"},
      {".csv", "sentence,label\na,0\n\"b\nc,1\n", "train.csv:3: a quoted field that begins in this row has no end"},
      {".csv", "sentence,label\na \"b\" c,0\n",
       "train.csv:2: a quote within a field; a field with quotes is itself in quotes, and each of its quotes is "
       "doubled"},
      {".jsonl", "{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\"\n",
       "train.jsonl:2: the object of this line, line 1, column 12: not valid JSON; each line holds one, as {\"text\": "
       "\"...\", \"label\": 0}"},
      {".jsonl", "{\"text\":\"a\",\"label\":" + std::string(200'000, '['),
       "train.jsonl:1: the object of this line, line 1, column 148: nested deeper than 128 levels; each line holds "
       "one, "
       "as {\"text\": \"...\", \"label\": 0}"},
      {".jsonl", "[1]\n",
       "train.jsonl:1: not a JSON object; each line holds one, as {\"text\": \"...\", \"label\": 0}"},
      {".jsonl", "{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\"}\n",
       "train.jsonl:2: there is no column \"label\", which data.label names (the columns: text)"},
      {".jsonl", "{\"text\":[1],\"label\":0}\n", "train.jsonl:1: \"text\" is [1]; it must be a string"},
      {".jsonl", "{\"text\":\"a\",\"label\":0.5}\n",
       "train.jsonl:1: \"label\" is 0.5; it must be an integer, a string, or a list of these"},
      {".tsv", "sentence\tlabel\na\t0\nb\xE9 c\t0\n",
       "train.tsv:3: byte 2 of this line, 0xE9, is not UTF-8; convert the file, as with `iconv -f latin1 -t utf-8`"},
      {".tsv", "sentence\tlabel\na\t0\nb\t3.5\n",
       "train.tsv:3: the label 3.5 is a number with a fraction; a class is an integer or a name; to predict numbers, "
       "name their columns with data.numbers"},
      {".tsv", "sentence\tlabel\na\t0\nb\t\n",
       "train.tsv:3: the label is blank; write the class there, or remove the row"},
      {".tsv", "\xFF\xFEs", "train.tsv: is UTF-16; convert the file, as with `iconv -f utf-16 -t utf-8`"},
      {".txt", "a\n", "train.txt: a table ends with .tsv, .csv or .jsonl, by which its format is known"}};
  for (const auto& c : cases) EXPECT_EQ(error_in_train(c.ending, c.text, c.more), c.message) << c.text;
}

TEST_F(TextTables, ErrorsBetweenSplitsAndKeys) {
  EXPECT_EQ(
      error_of(text_classification(options(".tsv", "text\tlabel\na\tgood\nb\tbad\n", "text\tlabel\nc\tbad\nd\tgod\n"))),
      "validation.tsv:3: the label \"god\" is not in train.tsv (its labels: bad, good); a class must be in train "
      "to be learned; did you mean \"good\"?");
  auto o = options(".tsv", "text\tlabel\na\t0\n\t0\n", "text\tlabel\na\t0\n");
  EXPECT_EQ(open(text_classification(o)).train->size(), 2) << "[CLS] [SEP] is a sample, too";
  o.tokenizer = "bytes";
  EXPECT_EQ(error_of(text_classification(o)),
            "train.tsv:3: this text has no tokens; remove the row, or write a text into it");
  o.pad_multiple = 5;
  EXPECT_NE(error_of<ConfigError>(text_classification(o)).find("pad_multiple"), std::string::npos);
  o.pad_multiple = 1;
  o.tokenizer.reset();
  EXPECT_NE(error_of<ConfigError>(text_classification(o)).find("tokenizer: is required"), std::string::npos);
  o.tokenizer = "bytes";
  auto skipping = quiet();
  skipping.skip_bad_samples = true;
  EXPECT_NE(error_of<ConfigError>(text_classification(o), skipping).find("on_bad_sample: has no effect with texts"),
            std::string::npos);
  o.validation = "";
  EXPECT_NE(error_of<ConfigError>(text_classification(o)).find("validation: is required"), std::string::npos);
  TextClassificationOptions missing;
  missing.path = folder_.path("nothing");
  missing.tokenizer = "bytes";
  EXPECT_EQ(error_of(text_classification(missing)),
            "nothing: no such folder; data.path names a folder, data.train a file");
  std::filesystem::create_directories(missing.path);
  EXPECT_EQ(error_of(text_classification(missing)),
            "nothing: has no table of the train split: train.tsv or .csv or .jsonl");
  static_cast<void>(write("nothing/train.csv", "text,label\na,0\n"));
  EXPECT_EQ(
      error_of(text_classification(missing)),
      "nothing: has no table of the validation split: validation.tsv or .csv or .jsonl; its name may also be valid, "
      "val or dev; or set data.validation_share, which takes it from the training texts");
}

TEST_F(TextTables, AValidationSplitIsTakenFromTheTrainingTexts) {
  std::string rows = "text\tlabel\n";
  for (int i = 0; i < 20; ++i) rows += fmt::format("{}\t{}\n", static_cast<char>('a' + i), i < 10 ? "x" : "y");
  TextClassificationOptions o;
  o.train = write("all.tsv", rows);
  o.tokenizer = "bytes";
  o.validation_share = 0.3;
  const auto sets = open(text_classification(o));
  ASSERT_EQ(sets.train->size(), 14);
  ASSERT_EQ(sets.validation->size(), 6);
  std::string letters;
  std::int64_t of_y = 0;
  for (const auto& set : {sets.train, sets.validation})
    for (std::int64_t i = 0; i < set->size(); ++i) {
      const auto sample = set->get(i, 0, false).value();
      const auto letter = static_cast<char>(values_of(sample.inputs["input_ids"]).at(0));
      letters += letter;
      EXPECT_EQ(sample.targets[nn::kLabels].item<std::int64_t>(), letter < 'a' + 10 ? 0 : 1);
      of_y += set == sets.validation && letter >= 'a' + 10;
    }
  EXPECT_EQ(of_y, 3);
  std::sort(letters.begin(), letters.end());
  EXPECT_EQ(letters, "abcdefghijklmnopqrst");
  o.validation = o.train;
  EXPECT_NE(error_of<ConfigError>(text_classification(o)).find("validation_share"), std::string::npos);
}

/// A model that starts from weights reads texts as they did.
TEST_F(TextTables, TheTokenizerBesideTheWeightsIsTheDefault) {
  auto o = options(".tsv", "text\tlabel\na b\t0\n", "text\tlabel\na\t0\n");
  std::filesystem::rename(*o.tokenizer, folder_.write("weights/vocab.txt", ""));
  folder_.write("weights/model.safetensors", testing_tools::safetensors({}));
  o.tokenizer.reset();
  auto source = text_classification(o);
  auto context = quiet();
  context.weights = folder_.path("weights");
  const auto sets = data::open(source, context);
  EXPECT_EQ(values_of(sets.train->get(0, 0, false)->inputs["input_ids"]), (Ids{2, 5, 6, 3}));
  EXPECT_TRUE(sets.info.files.contains("vocab.txt"));
  EXPECT_EQ(*static_cast<TextClassificationOptions*>(source.options())->tokenizer, context.weights);
  o.tokenizer = "";
  auto empty = text_classification(o);
  EXPECT_EQ(data::open(empty, context).train->size(), 1) << "an empty key is an unset one";
}

}  // namespace
}  // namespace trireme::data
