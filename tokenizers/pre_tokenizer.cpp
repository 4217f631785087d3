#include "tokenizers/pre_tokenizer.h"

#include "tokenizers/byte_level.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

/// English contractions, letters, numbers and other characters, each with a space before it, and white space.
constexpr const char* kGpt2Words = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// A part of a text that is a match, or lies between two.
struct Section {
  Range range{};
  bool is_match = false;
};

std::vector<Section> sections(std::string_view text, const std::vector<Range>& matches, bool invert) {
  std::vector<Section> out;
  std::size_t done = 0;
  for (const auto match : matches) {
    if (done < match.begin) out.push_back({{done, match.begin}, invert});
    out.push_back({match, !invert});
    done = match.end;
  }
  if (done < text.size()) out.push_back({{done, text.size()}, invert});
  return out;
}

/// The sections that remain, each match with its neighbour as `behavior` says.
std::vector<Range> merged(const std::vector<Section>& sections, SplitBehavior behavior) {
  std::vector<Range> out;
  bool last_is_match = false;
  for (const auto& section : sections) {
    const bool joins = (behavior == SplitBehavior::merged_with_previous && section.is_match && !last_is_match) ||
                       (behavior == SplitBehavior::merged_with_next && !section.is_match && last_is_match);
    const bool is_removed = behavior == SplitBehavior::removed && section.is_match;
    if (joins && !out.empty())
      out.back().end = section.range.end;
    else if (!is_removed)
      out.push_back(section.range);
    last_is_match = section.is_match;
  }
  return out;
}

}  // namespace

void BertPreTokenizer::split(std::string_view text, bool /*is_first*/, Pieces& out) const {
  std::size_t word = 0;  // where it began
  const auto end_word = [&](std::size_t end) {
    if (word < end) out.emplace_back(text.substr(word, end - word));
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto c = next_char(text, at);
    const bool is_space = is_white_space(c);
    if (!is_space && !is_punctuation(c)) continue;
    end_word(begin);
    if (!is_space) out.emplace_back(text.substr(begin, at - begin));
    word = at;
  }
  end_word(text.size());
}

void SplitPreTokenizer::split(std::string_view text, bool /*is_first*/, Pieces& out) const {
  for (const auto range : merged(sections(text, pattern_.find(text), invert_), behavior_))
    if (range.begin < range.end) out.emplace_back(text.substr(range.begin, range.end - range.begin));
}

ByteLevelPreTokenizer::ByteLevelPreTokenizer(bool add_prefix_space, bool use_regex)
    : add_prefix_space_(add_prefix_space) {
  if (use_regex) words_.emplace(Pattern::of_expression(kGpt2Words), SplitBehavior::isolated, false);
}

void ByteLevelPreTokenizer::split(std::string_view text, bool is_first, Pieces& out) const {
  const auto whole = (add_prefix_space_ && !text.starts_with(' ') ? " " : "") + std::string(text);
  Pieces words;
  if (words_)
    words_->split(whole, is_first, words);
  else
    words.push_back(whole);
  for (const auto& word : words) out.push_back(to_byte_level(word));
}

MetaspacePreTokenizer::MetaspacePreTokenizer(std::string replacement, Prepend prepend, bool split)
    : replacement_(std::move(replacement)), prepend_(prepend) {
  if (split) words_.emplace(Pattern::of_literal(replacement_), SplitBehavior::merged_with_next, false);
}

void MetaspacePreTokenizer::split(std::string_view text, bool is_first, Pieces& out) const {
  auto whole = replaced(std::string(text), Pattern::of_literal(" "), replacement_);
  const bool is_wanted = prepend_ == Prepend::always || (prepend_ == Prepend::first && is_first);
  if (is_wanted && !whole.starts_with(replacement_)) whole = replacement_ + whole;
  if (words_)
    words_->split(whole, is_first, out);
  else
    out.push_back(std::move(whole));
}

void PreTokenizerSequence::split(std::string_view text, bool is_first, Pieces& out) const {
  Pieces pieces{std::string(text)};
  for (const auto& part : parts_) {
    Pieces next;
    for (std::size_t i = 0; i < pieces.size(); ++i) part->split(pieces[i], is_first && i == 0, next);
    pieces = std::move(next);
  }
  out.insert(out.end(), std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end()));
}

}  // namespace trireme::tokenizers
