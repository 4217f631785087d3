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
    const bool continues = behavior == SplitBehavior::contiguous && section.is_match == last_is_match;
    const bool is_removed = behavior == SplitBehavior::removed && section.is_match;
    if ((joins || continues) && !out.empty())
      out.back().end = section.range.end;
    else if (!is_removed)
      out.push_back(section.range);
    last_is_match = section.is_match;
  }
  return out;
}

void split_as_bert(const AlignedText& from, bool /*is_first*/, Pieces& out) {
  const auto& text = from.text();
  std::size_t word = 0;  // where it began
  const auto end_word = [&](std::size_t end) {
    if (word < end) out.push_back(from.part({word, end}));
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto begin = at;
    const auto c = next_char(text, at);
    const bool is_space = is_white_space(c);
    if (!is_space && !is_punctuation(c)) continue;
    end_word(begin);
    if (!is_space) out.push_back(from.part({begin, at}));
    word = at;
  }
  end_word(text.size());
}

void split_at_words(const AlignedText& from, bool /*is_first*/, Pieces& out) {
  enum class Kind : std::uint8_t { none, word, other };
  const auto& text = from.text();
  Kind last = Kind::none;
  std::size_t piece = 0;  // where it began
  for (std::size_t at = 0; at <= text.size();) {
    const auto begin = at;
    auto kind = Kind::none;
    if (at < text.size()) {
      const auto c = next_char(text, at);
      kind = is_word_char(c) ? Kind::word : is_white_space(c) ? Kind::none : Kind::other;
    }
    if (kind != last) {
      if (last != Kind::none) out.push_back(from.part({piece, begin}));
      piece = begin;
    }
    last = kind;
    if (begin == text.size()) break;
  }
}

}  // namespace

PreTokenizer bert_pre_tokenizer() { return split_as_bert; }

PreTokenizer split_pre_tokenizer(Pattern pattern, SplitBehavior behavior, bool invert) {
  return [pattern = std::move(pattern), behavior, invert](const AlignedText& text, bool /*is_first*/, Pieces& out) {
    const auto ranges = merged(sections(text.text(), pattern.find(text.text()), invert), behavior);
    out.reserve(out.size() + ranges.size());
    for (const auto range : ranges)
      if (range.begin < range.end) out.push_back(text.part(range));
  };
}

PreTokenizer whitespace_pre_tokenizer() { return split_at_words; }

PreTokenizer fixed_length_pre_tokenizer(std::size_t length) {
  return [length](const AlignedText& text, bool /*is_first*/, Pieces& out) {
    for (std::size_t at = 0; at < text.text().size();) {
      const auto begin = at;
      for (std::size_t i = 0; i < length && at < text.text().size(); ++i) next_char(text.text(), at);
      out.push_back(text.part({begin, at}));
    }
  };
}

PreTokenizer byte_level_pre_tokenizer(bool add_prefix_space, bool use_regex) {
  const auto words = use_regex ? split_pre_tokenizer(Pattern::of_expression(kGpt2Words), SplitBehavior::isolated, false)
                               : pre_tokenizer_sequence({});
  return [words, add_prefix_space](const AlignedText& text, bool is_first, Pieces& out) {
    Pieces pieces;
    words(add_prefix_space && !text.text().starts_with(' ') ? prepended(text, " ") : text, is_first, pieces);
    for (const auto& piece : pieces) out.push_back(to_byte_level(piece));
  };
}

PreTokenizer metaspace_pre_tokenizer(std::string replacement, Prepend prepend, bool split) {
  const auto words = split
                         ? split_pre_tokenizer(Pattern::of_literal(replacement), SplitBehavior::merged_with_next, false)
                         : pre_tokenizer_sequence({});
  return [words, replacement = std::move(replacement), prepend](const AlignedText& text, bool is_first, Pieces& out) {
    auto whole = replaced(text, Pattern::of_literal(" "), replacement);
    const bool is_wanted = prepend == Prepend::always || (prepend == Prepend::first && is_first);
    if (is_wanted && !whole.text().starts_with(replacement)) whole = prepended(whole, replacement);
    words(whole, is_first, out);
  };
}

PreTokenizer pre_tokenizer_sequence(std::vector<PreTokenizer> parts) {
  return [parts = std::move(parts)](const AlignedText& text, bool is_first, Pieces& out) {
    Pieces pieces{text};
    for (const auto& part : parts) {
      Pieces next;
      for (std::size_t i = 0; i < pieces.size(); ++i) part(pieces[i], is_first && i == 0, next);
      pieces = std::move(next);
    }
    out.insert(out.end(), std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end()));
  };
}

}  // namespace trireme::tokenizers
