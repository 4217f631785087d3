#include "tokenizers/normalizer.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "tokenizers/byte_level.h"

namespace trireme::tokenizers {
namespace {

bool is_line_or_tab(char32_t c) { return c == '\t' || c == '\n' || c == '\r'; }

/// BERT's first two steps: what is cleaned, and spaces around ideographs.
std::string cleaned(const std::string& text, const BertNormalizerOptions& options) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto c = next_char(text, at);
    if (options.clean_text) {
      if (c == 0 || c == 0xFFFD || is_control(c)) continue;
      if (is_white_space(c)) c = ' ';
    }
    const bool is_separate = options.handle_chinese_chars && is_ideograph(c);
    if (is_separate) out += ' ';
    append_char(out, c);
    if (is_separate) out += ' ';
  }
  return out;
}

std::string without_accents(const std::string& text) {
  std::string out;
  const auto decomposed = normal_form(text, NormalForm::nfd);
  for (std::size_t at = 0; at < decomposed.size();)
    if (const auto c = next_char(decomposed, at); !is_nonspacing_mark(c)) append_char(out, c);
  return out;
}

std::string lowercased(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) append_lowercase(out, next_char(text, at));
  return out;
}

/// All of BERT's steps, where only ASCII characters are.
std::string normalized_ascii(const std::string& text, const BertNormalizerOptions& options) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const bool is_dropped =
        options.clean_text && ((c >= 0 && c < ' ') || c == 0x7F) && !is_line_or_tab(static_cast<char32_t>(c));
    if (is_dropped) continue;
    if (options.clean_text && c <= ' ')
      out += ' ';
    else if (options.lowercase)
      append_lowercase(out, static_cast<char32_t>(c));
    else
      out += c;
  }
  return out;
}

}  // namespace

Normalizer bert_normalizer(BertNormalizerOptions options) {
  return [options](const std::string& text) {
    if (is_ascii(text)) return normalized_ascii(text, options);
    auto out = cleaned(text, options);
    if (options.strip_accents) out = without_accents(out);
    return options.lowercase ? lowercased(out) : out;
  };
}

Normalizer normal_form_normalizer(NormalForm form) {
  return [form](const std::string& text) { return normal_form(text, form); };
}

Normalizer lowercase_normalizer() { return lowercased; }

Normalizer strip_accents_normalizer() {
  return [](const std::string& text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();)
      if (const auto c = next_char(text, at); !is_mark(c)) append_char(out, c);
    return out;
  };
}

Normalizer strip_normalizer(bool left, bool right) {
  return [left, right](const std::string& text) {
    std::size_t begin = 0, end = 0;  // of what is not white space
    bool found = false;
    for (std::size_t at = 0; at < text.size();) {
      const auto before = at;
      if (is_white_space(next_char(text, at))) continue;
      if (!found) begin = before;
      found = true;
      end = at;
    }
    if (!found) return left || right ? std::string() : text;
    if (!left) begin = 0;
    if (!right) end = text.size();
    return text.substr(begin, end - begin);
  };
}

Normalizer nmt_normalizer() {
  return [](const std::string& text) {
    const auto in = [](char32_t c, char32_t first, char32_t last) { return c >= first && c <= last; };
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const auto c = next_char(text, at);
      if (in(c, 0x01, 0x08) || c == 0x0B || in(c, 0x0E, 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) continue;
      const bool is_space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 || in(c, 0x200B, 0x200F) ||
                            c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      append_char(out, is_space ? U' ' : c);
    }
    return out;
  };
}

Normalizer byte_level_normalizer() {
  return [](const std::string& text) { return to_byte_level(text); };
}

Normalizer prepend_normalizer(std::string prefix) {
  return [prefix = std::move(prefix)](const std::string& text) { return text.empty() ? text : prefix + text; };
}

Normalizer replace_normalizer(Pattern pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](const std::string& text) {
    return replaced(text, pattern, content);
  };
}

Normalizer normalizer_sequence(std::vector<Normalizer> parts) {
  return [parts = std::move(parts)](std::string text) {
    for (const auto& part : parts) text = part(text);
    return text;
  };
}

std::string replaced(const std::string& text, const Pattern& pattern, const std::string& content) {
  const auto matches = pattern.find(text);
  if (text.size() + matches.size() * content.size() > kMostText)
    throw DataError(
        fmt::format("a text of {} bytes becomes too long when the tokenizer normalizes it; split it", text.size()));
  std::string out;
  std::size_t done = 0;
  for (const auto match : matches) {
    out.append(text, done, match.begin - done).append(content);
    done = match.end;
  }
  return out.append(text, done);
}

}  // namespace trireme::tokenizers
