// Files that are damaged at random make a tokenizer that works, or are refused.

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/unit/damaged_files.h"
#include "tests/unit/tokenizers/fixtures.h"
#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {
namespace {

using tests::Draws, tests::mutate;

class Mutations : public testing::TestWithParam<std::string> {};

TEST_P(Mutations, MakeATokenizerOrADataError) {
  const auto whole = fixture_files(GetParam());
  const auto lines = difficult_lines();
  Draws draws(GetParam());
  const int count = tests::mutations(300);
  int made = 0;
  for (int i = 0; i < count; ++i) {
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
  EXPECT_LT(made, count);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Mutations, testing::ValuesIn(fixture_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace trireme::tokenizers
