#include "tokenizers/decoder.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "tokenizers/byte_level.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

/// What BERT's clean-up writes for what, in this order.
std::string cleaned_up(std::string token) {
  static constexpr std::array<std::pair<const char*, const char*>, 11> kRules{{{" .", "."},
                                                                               {" ?", "?"},
                                                                               {" !", "!"},
                                                                               {" ,", ","},
                                                                               {" ' ", "'"},
                                                                               {" n't", "n't"},
                                                                               {" 'm", "'m"},
                                                                               {" do not", " don't"},
                                                                               {" 's", "'s"},
                                                                               {" 've", "'ve"},
                                                                               {" 're", "'re"}}};
  for (const auto& [from, to] : kRules)
    if (token.find(from) != token.npos) token = replaced(token, Pattern::of_literal(from), to);
  return token;
}

/// The byte that a token such as "<0x0A>" stands for.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

std::string joined(const Tokens& tokens) {
  std::string out;
  for (const auto& token : tokens) out += token;
  return out;
}

}  // namespace

Tokens WordPieceDecoder::apply(Tokens tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    auto& token = tokens[i];
    if (i > 0 && token.starts_with(prefix_))
      token.erase(0, prefix_.size());
    else if (i > 0)
      token.insert(0, " ");
    if (cleanup_) token = cleaned_up(std::move(token));
  }
  return tokens;
}

Tokens ByteLevelDecoder::apply(Tokens tokens) const {
  std::string bytes;
  for (const auto& token : tokens) bytes += from_byte_level(token);
  return {repaired(bytes)};
}

Tokens ByteFallbackDecoder::apply(Tokens tokens) const {
  Tokens out;
  std::string bytes;
  const auto end_bytes = [&] {
    if (bytes.empty()) return;
    if (invalid_byte(bytes)) {
      std::string marks;
      for (std::size_t i = 0; i < bytes.size(); ++i) append_char(marks, 0xFFFD);
      bytes = std::move(marks);
    }
    out.push_back(std::exchange(bytes, ""));
  };
  for (auto& token : tokens) {
    if (const auto byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    end_bytes();
    out.push_back(std::move(token));
  }
  end_bytes();
  return out;
}

Tokens MetaspaceDecoder::apply(Tokens tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = replaced(tokens[i], replacement_, i == 0 && drop_in_first_ ? "" : " ");
  return tokens;
}

Tokens ReplaceDecoder::apply(Tokens tokens) const {
  for (auto& token : tokens) token = replaced(token, pattern_, content_);
  return tokens;
}

Tokens FuseDecoder::apply(Tokens tokens) const { return {joined(tokens)}; }

Tokens StripDecoder::apply(Tokens tokens) const {
  for (auto& token : tokens) {
    std::string_view rest = token;
    for (std::size_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
    for (std::size_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
    token = std::string(rest);
  }
  return tokens;
}

Tokens DecoderSequence::apply(Tokens tokens) const {
  for (const auto& part : parts_) tokens = part->apply(std::move(tokens));
  return tokens;
}

}  // namespace trireme::tokenizers
