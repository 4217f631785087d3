// Files that are damaged at random make a tokenizer that works, or are refused.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/unit/tokenizers/fixtures.h"
#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {
namespace {

constexpr int kMutations = 300;  // of each fixture

/// Numbers that only depend on the fixture and on how many were drawn.
class Draws {
 public:
  explicit Draws(const std::string& name) : key_(random::hash(name)) {}
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random::mix(key_, ++count_) % end); }

 private:
  std::uint64_t key_, count_ = 0;
};

/// Changes a few places of a text: a byte, a range that is left out or doubled, another file's word, the end.
void mutate(std::string& text, Draws& draws) {
  static const std::vector<std::string> kWords{
      "null", "-1", "{}",    "[]",    "\"\"",    "1e9",   "99999999999999999999", "true", "\xFF", "\n", " ", "\\",
      "]",    "}",  "[CLS]", "\"A\"", "\\ud800", "(a*)*", "\"(a|b)+\"",           ",",    "0"};
  for (auto times = 1 + draws.below(3); times > 0 && !text.empty(); --times) {
    const auto at = draws.below(text.size()), length = draws.below(std::min<std::size_t>(text.size() - at, 40) + 1);
    switch (draws.below(6)) {
      case 0:
        text[at] = static_cast<char>(draws.below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.replace(at, length, kWords[draws.below(kWords.size())]);
        break;
      case 4:
        text.insert(at, kWords[draws.below(kWords.size())]);
        break;
      default:
        text.resize(draws.below(8) == 0 ? at : text.size());
        break;
    }
  }
}

class Mutations : public testing::TestWithParam<std::string> {};

TEST_P(Mutations, MakeATokenizerOrADataError) {
  const auto whole = fixture_files(GetParam());
  const auto lines = difficult_lines();
  Draws draws(GetParam());
  int made = 0;
  for (int i = 0; i < kMutations; ++i) {
    auto files = whole;
    mutate(std::next(files.begin(), static_cast<std::ptrdiff_t>(draws.below(files.size())))->second, draws);
    try {
      const auto tokenizer = load_tokenizer(files);
      ++made;
      for (int line = 0; line < 5; ++line) {
        const auto ids = tokenizer->encode(lines[draws.below(lines.size())]);
        for (const auto id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocabulary());
        (void)tokenizer->decode(ids);
        (void)tokenizer->encode_sample(lines[draws.below(lines.size())], "the ship", 20);
      }
    } catch (const DataError& error) {
      EXPECT_FALSE(std::string(error.what()).empty());
    }
  }
  EXPECT_GT(made, 0);
  EXPECT_LT(made, kMutations);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Mutations, testing::ValuesIn(fixture_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme::tokenizers
