#include "tokenizers/normalizer.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

/// BERT's first two steps: what is cleaned, and spaces around ideographs.
AlignedText cleaned(const AlignedText& from, const BertNormalizerOptions& options) {
  const auto& text = from.text();
  TextEdit out(from);
  for (std::size_t at = 0; at < text.size();) {
    auto c = next_char(text, at);
    if (options.clean_text) {
      if (c == 0 || c == 0xFFFD || is_control(c)) {
        out.skip();
        continue;
      }
      if (is_white_space(c)) c = ' ';
    }
    const bool is_separate = options.handle_chinese_chars && is_ideograph(c);
    out.replace(is_separate ? ' ' : c);
    if (is_separate) {
      out.insert(c);
      out.insert(' ');
    }
  }
  return out.finish();
}

/// Leaves out the characters of a class.
AlignedText without(const AlignedText& text, bool (*is_in)(char32_t c)) {
  TextEdit out(text);
  for (std::size_t at = 0; at < text.text().size();) {
    const auto begin = at;
    if (is_in(next_char(text.text(), at)))
      out.skip();
    else
      out.keep({begin, at});
  }
  return out.finish();
}

AlignedText lowercased(const AlignedText& text) {
  TextEdit out(text);
  for (std::size_t at = 0; at < text.text().size();) {
    const auto c = next_char(text.text(), at);
    out.replace(lowercase(c));
    if (c == kDottedI) out.insert(kDotAbove);
  }
  return out.finish();
}

/// All of BERT's steps, where only ASCII characters are.
AlignedText normalized_ascii(const AlignedText& text, const BertNormalizerOptions& options) {
  TextEdit out(text);
  for (const char byte : text.text()) {
    const auto c = static_cast<char32_t>(byte);
    if (options.clean_text && (c == 0 || is_control(c)))
      out.skip();
    else if (options.clean_text && c <= ' ')
      out.replace(' ');
    else
      out.replace(options.lowercase ? lowercase(c) : c);
  }
  return out.finish();
}

}  // namespace

Normalizer bert_normalizer(BertNormalizerOptions options) {
  return [options](const AlignedText& text) {
    if (is_ascii(text.text())) return normalized_ascii(text, options);
    auto out = cleaned(text, options);
    if (options.strip_accents) out = without(normal_form(out, NormalForm::nfd), is_nonspacing_mark);
    return options.lowercase ? lowercased(out) : out;
  };
}

Normalizer normal_form_normalizer(NormalForm form) {
  return [form](const AlignedText& text) { return normal_form(text, form); };
}

Normalizer lowercase_normalizer() { return lowercased; }

Normalizer strip_accents_normalizer() {
  return [](const AlignedText& text) { return without(text, is_mark); };
}

Normalizer strip_normalizer(bool left, bool right) {
  return [left, right](const AlignedText& from) {
    const auto& text = from.text();
    std::size_t begin = 0, end = 0;  // of what is not white space
    bool found = false;
    for (std::size_t at = 0; at < text.size();) {
      const auto before = at;
      if (is_white_space(next_char(text, at))) continue;
      if (!found) begin = before;
      found = true;
      end = at;
    }
    if (!found) return left || right ? AlignedText() : from;
    return from.part({left ? begin : 0, right ? end : text.size()});
  };
}

Normalizer nmt_normalizer() {
  return [](const AlignedText& text) {
    const auto in = [](char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; };
    TextEdit out(text);
    for (std::size_t at = 0; at < text.text().size();) {
      const auto c = next_char(text.text(), at);
      const bool is_left_out =
          in(c, 0x01, 0x08) || c == 0x0B || in(c, 0x0E, 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      const bool is_space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 || in(c, 0x200B, 0x200F) ||
                            c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      is_left_out ? out.skip() : out.replace(is_space ? U' ' : c);
    }
    return out.finish();
  };
}

Normalizer byte_level_normalizer() { return to_byte_level; }

Normalizer prepend_normalizer(std::string prefix) {
  return [prefix = std::move(prefix)](const AlignedText& text) { return prepended(text, prefix); };
}

Normalizer replace_normalizer(Pattern pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](const AlignedText& text) {
    return replaced(text, pattern, content);
  };
}

Normalizer normalizer_sequence(std::vector<Normalizer> parts) {
  return [parts = std::move(parts)](AlignedText text) {
    for (const auto& part : parts) text = part(text);
    return text;
  };
}

AlignedText replaced(const AlignedText& text, const Pattern& pattern, const std::string& content) {
  const auto matches = pattern.find(text.text());
  if (text.text().size() + matches.size() * content.size() > kMostText)
    throw DataError(fmt::format("a text of {} bytes becomes too long when the tokenizer normalizes it; split it",
                                text.text().size()));
  TextEdit out(text);
  std::size_t done = 0;
  for (const auto match : matches) {
    out.keep({done, match.begin});
    out.skip_to(match.end);
    out.insert(content);
    done = match.end;
  }
  out.keep({done, text.text().size()});
  return out.finish();
}

AlignedText prepended(const AlignedText& text, const std::string& prefix) {
  if (text.text().empty() || prefix.empty()) return text;
  TextEdit out(text);
  std::size_t at = 0;
  out.replace(next_char(prefix, at));
  out.insert(std::string_view(prefix).substr(at));
  at = 0;
  out.insert(next_char(text.text(), at));
  out.keep({at, text.text().size()});
  return out.finish();
}

}  // namespace trireme::tokenizers
