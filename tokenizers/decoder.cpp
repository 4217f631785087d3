#include "tokenizers/decoder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/text.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

std::string with_replaced(const std::string& token, const Pattern& pattern, const std::string& content) {
  return replaced(AlignedText(token), pattern, content).text();
}

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
    if (token.find(from) != token.npos) token = with_replaced(token, Pattern::of_literal(from), to);
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

/// What byte_fallback_decoder() makes of them.
Tokens with_bytes_joined(Tokens tokens) {
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

}  // namespace

Decoder word_piece_decoder(std::string prefix, bool cleanup) {
  return [prefix = std::move(prefix), cleanup](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      auto& token = tokens[i];
      if (i > 0 && token.starts_with(prefix))
        token.erase(0, prefix.size());
      else if (i > 0)
        token.insert(0, " ");
      if (cleanup) token = cleaned_up(std::move(token));
    }
    return tokens;
  };
}

Decoder byte_level_decoder() {
  return [](const Tokens& tokens) {
    std::string bytes;
    for (const auto& token : tokens) bytes += from_byte_level(token);
    return Tokens{repaired(bytes)};
  };
}

Decoder byte_fallback_decoder() { return with_bytes_joined; }

Decoder metaspace_decoder(std::string replacement, bool drop_in_first) {
  return [pattern = Pattern::of_literal(std::move(replacement)), drop_in_first](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = with_replaced(tokens[i], pattern, i == 0 && drop_in_first ? "" : " ");
    return tokens;
  };
}

Decoder replace_decoder(Pattern pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](Tokens tokens) {
    for (auto& token : tokens) token = with_replaced(token, pattern, content);
    return tokens;
  };
}

Decoder bpe_decoder(std::string suffix) {
  return [pattern = Pattern::of_literal(std::move(suffix))](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = with_replaced(tokens[i], pattern, i + 1 < tokens.size() ? " " : "");
    return tokens;
  };
}

Decoder ctc_decoder(std::string padding, std::string delimiter, bool cleanup) {
  return [padding = Pattern::of_literal(std::move(padding)), delimiter = Pattern::of_literal(std::move(delimiter)),
          cleanup](Tokens tokens) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    Tokens out;
    for (const auto& token : tokens) {
      auto text = with_replaced(token, padding, "");
      if (cleanup) text = with_replaced(cleaned_up(std::move(text)), delimiter, " ");
      if (!text.empty()) out.push_back(std::move(text));
    }
    return out;
  };
}

Decoder fuse_decoder() {
  return [](const Tokens& tokens) { return Tokens{text::join(tokens, "")}; };
}

Decoder strip_decoder(std::string content, std::size_t start, std::size_t stop) {
  return [content = std::move(content), start, stop](Tokens tokens) {
    for (auto& token : tokens) {
      std::string_view rest = token;
      for (std::size_t i = 0; i < start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
      for (std::size_t i = 0; i < stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
      token = std::string(rest);
    }
    return tokens;
  };
}

Decoder decoder_sequence(std::vector<Decoder> parts) {
  return [parts = std::move(parts)](Tokens tokens) {
    for (const auto& part : parts) tokens = part(std::move(tokens));
    return tokens;
  };
}

}  // namespace trireme::tokenizers
