// Texts, tables and files of tokens that are damaged at random are read, or refused in one message.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/unit/damaged_files.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

using tests::Draws;

class TextMutations : public TextTest {
 protected:
  /// Damages the file in many ways, and each time opens the data set and reads all samples.
  template <class Source>
  void damage(const std::string& name, const std::string& whole, const Source& source) {
    Draws draws(name);
    const int count = tests::mutations(200);
    int read = 0;
    for (int i = 0; i < count; ++i) {
      auto bytes = whole;
      tests::mutate(bytes, draws);
      static_cast<void>(write(name, bytes));
      try {
        const auto sets = open(source());
        for (std::int64_t sample = 0; sample < sets.train->size(); ++sample)
          static_cast<void>(sets.train->get(sample, 0, true));
        ++read;
      } catch (const DataError& error) {
        EXPECT_FALSE(std::string(error.what()).empty());
      } catch (const ConfigError& error) {
        EXPECT_FALSE(std::string(error.what()).empty());
      }
    }
    EXPECT_GT(read, 0) << name;
  }
};

TEST_F(TextMutations, Tables) {
  const struct {
    std::string ending, text;
  } cases[] = {{".tsv", "sentence\tlabel\na b c\t1\nc d\t0\n\"e\" f\t1\na\t0\n"},
               {".csv", "sentence,label\na b,1\n\"c \"\"d\"\",\ne\",0\nf,1\n\"g\",0\n"},
               {".jsonl",
                "{\"sentence\": \"a b\", \"label\": 1}\n{\"sentence\": \"c\\u0020d\", \"label\": 0}\n"
                "{\"sentence\": \"e\", \"label\": \"1\"}\n"}};
  for (const auto& c : cases)
    damage("train" + c.ending, c.text, [&] {
      datasets::TextClassificationOptions o;
      o.train = folder_.path("train" + c.ending);
      o.validation = write("validation" + c.ending, c.text);
      o.tokenizer = vocabulary();
      return datasets::text_classification(o);
    });
}

TEST_F(TextMutations, Texts) {
  for (const auto& [name, text] :
       {std::pair<std::string, std::string>{"a.txt", "a line of text\n\nand \xC3\xA9\xE4\xB8\xAD another\r\n"},
        {"a.jsonl", "{\"text\": \"a line\"}\n{\"text\": \"and\\nanother\", \"more\": [1, {}]}\n"}})
    damage(name, text, [&, path = folder_.path(name)] {
      datasets::TextOptions o;
      o.train = path;
      o.validation = write("validation.txt", "some more text");
      o.block = 4;
      return datasets::text(o);
    });
}

TEST_F(TextMutations, FilesOfTokens) {
  const auto number = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto index = std::string("MMIDIDX\0\0", 9) + number(std::int64_t{1}) + '\x08' + number(std::int64_t{2}) +
                     number(std::int64_t{2}) + number(std::int32_t{5}) + number(std::int32_t{7}) +
                     number(std::int64_t{0}) + number(std::int64_t{10}) + number(std::int64_t{0}) +
                     number(std::int64_t{2});
  std::string tokens;
  for (const char c : std::string("twelve bytes")) tokens += std::string{c, '\0'};
  static_cast<void>(write("m.bin", tokens));
  damage("m.idx", index, [&] {
    datasets::TextOptions o;
    o.train = folder_.path("m");
    o.validation = write("validation.txt", "some more text");
    o.block = 4;
    return datasets::text(o);
  });
}

}  // namespace
}  // namespace trireme::data
