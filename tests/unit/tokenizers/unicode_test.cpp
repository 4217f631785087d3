// What each part makes of every code point equals what Hugging Face's tokenizers make of it, whatever ICU the machine
// has (tests/golden/make/make_unicode.py).
#include "tokenizers/unicode.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/tokenizers/fixtures.h"
#include "tokenizers/json_parts.h"

namespace trireme::tokenizers {
namespace {

constexpr char32_t kBlock = 4096, kEnd = 0x110000;

/// The hashes of the golden file, where equal neighbours are written once: "0123abcd*7".
std::vector<std::string> hashes_of(const nlohmann::json& part) {
  std::vector<std::string> out;
  for (const auto& item : words_of(part.at("hashes"))) {
    const auto star = item.find('*');
    out.insert(out.end(), star == item.npos ? 1 : std::stoul(item.substr(star + 1)), item.substr(0, star));
  }
  return out;
}

class EveryCodePoint : public testing::TestWithParam<std::size_t> {};

TEST_P(EveryCodePoint, IsWhatItIsToHuggingFace) {
  static const auto golden =
      nlohmann::json::parse(file_text(std::string(TRIREME_SOURCE_DIR) + "/tests/golden/unicode.json"));
  const auto& part = golden.at(GetParam());
  const auto before = part.at("before").get<std::string>(), after = part.at("after").get<std::string>();
  const auto wanted = hashes_of(part);
  ASSERT_EQ(wanted.size(), kEnd / kBlock);
  const auto json = JsonView(part, part.at("name"));
  const auto normalizer = read_normalizer(json.find("normalizer"));
  const auto pre_tokenizer = read_pre_tokenizer(json.find("pre_tokenizer"));
  for (char32_t first = 0; first < kEnd; first += kBlock) {
    std::string text;
    for (char32_t c = first; c < first + kBlock; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      const bool is_assigned = c < 0x40000 || (c >= 0xE0000 && c < 0xE1000);  // as the script has it
      if (is_assigned) text += before;
      append_char(text, c);
      if (is_assigned) text += after;
    }
    auto made = normalizer(AlignedText(text)).text();
    if (part.contains("pre_tokenizer")) {
      Pieces pieces;
      pre_tokenizer(AlignedText(text), true, pieces);
      made.clear();
      for (const auto& piece : pieces) made += piece.text() + '\0';
    }
    EXPECT_EQ(short_hash(made), wanted[first / kBlock])
        << part.at("name") << ", U+" << std::hex << static_cast<std::uint32_t>(first);
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, EveryCodePoint, testing::Range<std::size_t>(0, 24));

}  // namespace
}  // namespace trireme::tokenizers
