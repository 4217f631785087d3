#include "tokenizers/post_processor.h"

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::tokenizers {
namespace {

std::int64_t special_tokens(const SampleTemplate& parts) {
  std::size_t count = 0;
  for (const auto& part : parts) count += part.ids.size();
  return static_cast<std::int64_t>(count);
}

/// How many tokens remain of two texts that together may have `most`. The shorter one keeps all it has if the other can
/// lose enough; else each has a half, and the longer one (of two equal ones the second) the odd token.
std::pair<std::size_t, std::size_t> longest_first(std::size_t first, std::size_t second, std::size_t most) {
  if (first + second <= most) return {first, second};
  const auto shorter = std::min(first, second);
  auto few = shorter, many = most - std::min(shorter, most);
  if (many < shorter) {
    few = most / 2;
    many = most - few;
  }
  return first > second ? std::pair(many, few) : std::pair(few, many);
}

}  // namespace

Encoded PostProcessor::sample(Ids text, std::optional<Ids> second, std::int64_t max_tokens) const {
  const auto& parts = second ? pair : single;
  const auto special = special_tokens(parts);
  TRIREME_REQUIRE(max_tokens >= special, "a sample of at most {} has no place for the {} around its text; allow more",
                  text::quantity(max_tokens, "token"), text::quantity(special, "special token"));
  std::array<Ids, 2> texts{std::move(text), std::move(second).value_or(Ids{})};
  const auto [first_size, second_size] =
      longest_first(texts[0].size(), texts[1].size(), static_cast<std::size_t>(max_tokens - special));
  texts[0].resize(first_size);
  texts[1].resize(second_size);
  Encoded out;
  for (const auto& part : parts) {
    const auto& ids = part.text ? texts.at(static_cast<std::size_t>(*part.text)) : part.ids;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.resize(out.ids.size(), part.type);
  }
  return out;
}

Ids PostProcessor::prompt(const Ids& text) const {
  Ids out;
  for (const auto& part : single) {
    const auto& ids = part.text ? text : part.ids;
    out.insert(out.end(), ids.begin(), ids.end());
    if (part.text) break;
  }
  return out;
}

}  // namespace trireme::tokenizers
