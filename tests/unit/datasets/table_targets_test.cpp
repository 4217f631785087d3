// What tables have the model learn: classes, labels and numbers, here with texts, and every error.
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "core/data/relabel.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

using datasets::text_classification;
using datasets::TextClassificationOptions;
using Names = std::vector<std::string>;

class TableTargets : public TextTest {
 protected:
  /// A table of texts and of `targets`, rows of further columns.
  [[nodiscard]] TextClassificationOptions options(const std::string& ending, const std::string& train,
                                                  datasets::TargetOptions targets,
                                                  const std::string& validation = "") const {
    TextClassificationOptions o;
    static_cast<datasets::TargetOptions&>(o) = std::move(targets);
    o.train = write("train" + ending, train);
    o.validation = write("validation" + ending, validation.empty() ? train : validation);
    o.tokenizer = "bytes";
    return o;
  }
};

at::Tensor flags(std::vector<int> values) { return at::tensor(values).to(at::kBool); }
at::Tensor number(double value) { return at::scalar_tensor(value, at::kFloat); }

TEST_F(TableTargets, HaveTheFormThatTheKeysSay) {
  const struct {
    std::string ending, text;
    datasets::TargetOptions options;
    Names classes;
    nn::SampleTensor spec;
    std::vector<at::Tensor> labels;
  } cases[] = {
      {".csv",
       "text,cat,dog,age\na,1,False,3\nb,0,true,-4.5\nc,1.0, 1 ,1e3\n",
       {.labels = {"dog", "cat"}},
       {"dog", "cat"},
       {"labels", at::kBool, {2}},
       {flags({0, 1}), flags({1, 0}), flags({1, 1})}},
      {".csv",
       "text,cat,dog,age\na,1,False,3\nb,0,true,-4.5\nc,1.0, 1 ,1e3\n",
       {.numbers = {"age"}},
       {},
       {"labels", at::kFloat, {}},
       {number(3), number(-4.5), number(1e3)}},
      {".jsonl",
       "{\"text\":\"a\",\"x\":1,\"y\":\"0.1\"}\n{\"text\":\"b\",\"x\":0.1,\"y\":2}\n",
       {.numbers = {"y", "x"}},
       {},
       {"labels", at::kFloat, {2}},
       {at::tensor({0.1F, 1.F}), at::tensor({2.F, 0.1F})}},
      {".tsv",
       "text\ttags\na\tred | blue\nb\t\nc\tred|\nd\tgreen\n",
       {.label = "tags", .label_separator = "|"},
       {"blue", "green", "red"},
       {"labels", at::kBool, {3}},
       {flags({1, 0, 1}), flags({0, 0, 0}), flags({0, 0, 1}), flags({0, 1, 0})}},
      {".tsv",
       "text\tlabel\na\t10 9\nb\t9\n",
       {.label_separator = " "},
       {"9", "10"},
       {"labels", at::kBool, {2}},
       {flags({1, 1}), flags({1, 0})}},
      {".jsonl",
       "{\"text\":\"a\",\"label\":[\"x\",7]}\n{\"text\":\"b\",\"label\":[]}\n{\"text\":\"c\",\"label\":[\"x\"]}\n",
       {},
       {"7", "x"},
       {"labels", at::kBool, {2}},
       {flags({1, 1}), flags({0, 0}), flags({0, 1})}},
      {".jsonl",
       "{\"text\":\"a\",\"cat\":true,\"dog\":0}\n{\"text\":\"b\",\"cat\":0,\"dog\":\"1\"}\n",
       {.labels = {"cat", "dog"}},
       {"cat", "dog"},
       {"labels", at::kBool, {2}},
       {flags({1, 0}), flags({0, 1})}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const auto sets = open(text_classification(options(c.ending, c.text, c.options)));
    const auto& spec = sets.info.spec;
    EXPECT_EQ(spec.class_names, c.classes);
    EXPECT_EQ(spec.targets, std::vector{c.spec});
    EXPECT_EQ(sets.train->spec().targets, spec.targets);
    for (const auto& split : {sets.train, sets.validation}) {
      ASSERT_EQ(split->size(), std::ssize(c.labels));
      for (std::int64_t i = 0; i < split->size(); ++i) {
        const auto label = split->get(i, 0, false)->targets[nn::kLabels];
        EXPECT_TRUE(at::equal(label, c.labels[static_cast<std::size_t>(i)])) << i << ": " << label;
        EXPECT_EQ(label.scalar_type(), c.spec.dtype);
      }
    }
  }
}

TEST_F(TableTargets, CanBeNumberedInAnotherOrder) {
  auto sets = open(text_classification(options(".tsv", "text\tlabel\na\tx y\nb\ty\n", {.label_separator = " "})));
  sets = relabel(std::move(sets), {"y", "z", "x"});
  EXPECT_EQ(sets.info.spec.targets, (std::vector<nn::SampleTensor>{{"labels", at::kBool, {3}}}));
  EXPECT_EQ(sets.train->spec().targets, sets.info.spec.targets);
  EXPECT_TRUE(at::equal(sets.train->get(0, 0, false)->targets[nn::kLabels], flags({1, 0, 1})));
  EXPECT_TRUE(at::equal(sets.train->get(1, 0, false)->targets[nn::kLabels], flags({1, 0, 0})));
}

TEST_F(TableTargets, OtherThanClassesAreHeldOutWithoutStrata) {
  std::string rows = "text\tage\n";
  for (int i = 0; i < 10; ++i) rows += fmt::format("a\t{}\n", i);
  auto o = options(".tsv", rows, {.numbers = {"age"}});
  o.validation = "";
  o.validation_share = 0.3;
  const auto sets = open(text_classification(o));
  EXPECT_EQ(sets.train->size(), 7);
  EXPECT_EQ(sets.validation->size(), 3);
  static_cast<void>(write("train.tsv", "text\tage\na\t1\n"));
  EXPECT_EQ(error_of(text_classification(o)), "train.tsv: there are no two texts, so that none can be for validation");
}

TEST_F(TableTargets, WrongCellsAreErrorsWithTheirLine) {
  const struct {
    std::string ending, text;
    datasets::TargetOptions options;
    std::string message, validation = "";
  } cases[] = {
      {".csv",
       "text,cat\na,1\nb,2\n",
       {.labels = {"cat"}},
       "train.csv:3: column \"cat\": \"2\" is neither 0 nor 1 (or false or true), as data.labels needs; correct the "
       "cell, or remove the row"},
      {".csv",
       "text,cat\na,\n",
       {.labels = {"cat"}},
       "train.csv:2: column \"cat\": \"\" is neither 0 nor 1 (or false or true), as data.labels needs; correct the "
       "cell, or remove the row"},
      {".csv",
       "text,cat\na,1\n",
       {.labels = {"cat", "dgo"}},
       "train.csv:1: there is no column \"dgo\", which data.labels names (the columns: text, cat)"},
      {".tsv",
       "text\tage\na\t3\n\nb\tnan\n",
       {.numbers = {"age"}},
       "train.tsv:4: column \"age\": \"nan\" is no finite number, as a target of data.numbers must be; correct the "
       "cell, or remove the row"},
      {".tsv",
       "text\tage\na\t3 years\n",
       {.numbers = {"age"}},
       "train.tsv:2: column \"age\": \"3 years\" is no finite number, as a target of data.numbers must be; correct the "
       "cell, or remove the row"},
      {".jsonl",
       "{\"text\":\"a\",\"age\":null}\n",
       {.numbers = {"age"}},
       "train.jsonl:1: \"age\" is null; it must be a number, true, false, or a string"},
      {".jsonl",
       "{\"text\":\"a\",\"label\":[\"x\",0.5]}\n",
       {},
       "train.jsonl:1: \"label\" is [\"x\",0.5]; it must be an integer, a string, or a list of these"},
      {".jsonl",
       "{\"text\":\"a\",\"label\":[\"x\"]}\n{\"text\":\"b\",\"label\":\"x\"}\n",
       {},
       "train.jsonl:2: \"label\" is no list, unlike in the rows before; write a list in each row, or in none"},
      {".jsonl",
       "{\"text\":\"a\",\"label\":[\"x\"]}\n",
       {},
       "validation.jsonl: \"label\" is no list here, unlike in train.jsonl; write it alike in all tables",
       "{\"text\":\"a\",\"label\":\"x\"}\n"},
      {".tsv",
       "text\tlabel\na\t\nb\t|\n",
       {.label_separator = "|"},
       "train.tsv: no row has a label; at least one label must be in train to be learned"},
      {".tsv",
       "text\tlabel\na\tgood|new\n",
       {.label_separator = "|"},
       "validation.tsv:3: the label \"god\" is not in train.tsv (its labels: good, new); a class must be in train to "
       "be learned; did you mean \"good\"?",
       "text\tlabel\na\tnew\nb\tnew|god\n"},
      {".tsv",
       "text\tlabel\na\t0.5\n",
       {},
       "train.tsv:2: the label 0.5 is a number with a fraction; a class is an integer or a name; to predict numbers, "
       "name their columns with data.numbers"}};
  for (const auto& c : cases)
    EXPECT_EQ(error_of(text_classification(options(c.ending, c.text, c.options, c.validation))), c.message) << c.text;
}

TEST_F(TableTargets, ExactlyOneFormIsChosen) {
  const struct {
    datasets::TargetOptions options;
    const char* message;
  } cases[] = {
      {{.labels = {"a"}, .numbers = {"b"}},
       "data.numbers = [\"b\"]: conflicts with labels: a sample has labels or numbers; remove one of the two"},
      {{.labels = {"a", "b", "a"}}, "data.labels = [\"a\", \"b\", \"a\"]: names a column twice; remove one of the two"},
      {{.label = "label", .labels = {"a"}},
       "data.label = \"label\": conflicts with labels, which names other columns to learn; remove one of the two"},
      {{.label_separator = "|", .numbers = {"b"}},
       "data.label_separator = \"|\": conflicts with numbers, which names other columns to learn; remove one of the "
       "two"}};
  for (const auto& c : cases)
    EXPECT_EQ(error_of<ConfigError>(text_classification(options(".tsv", "text\tlabel\na\t0\n", c.options))), c.message);
}

}  // namespace
}  // namespace trireme::data
