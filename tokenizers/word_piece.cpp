#include <unicode/utf8.h>

#include <algorithm>

#include "tokenizers/model.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

class WordPiece : public TokenModel {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options)
      : TokenModel(std::move(vocabulary)), options_(std::move(options)) {}
  void encode(std::string_view piece, PieceTokens& out) const override {
    const PieceToken whole{options_.unknown, 0, static_cast<std::uint32_t>(piece.size())};
    if (count_chars(piece) > options_.longest_word) {
      out.push_back(whole);
      return;
    }
    const auto before = out.size();
    std::string continued;  // the prefix and what is left of the word
    for (std::size_t begin = 0; begin < piece.size();) {
      std::string_view rest = piece;
      std::size_t prefix = 0;
      if (begin > 0) {
        continued.assign(options_.prefix).append(piece.substr(begin));
        rest = continued;
        prefix = options_.prefix.size();
      }
      auto end = std::min(rest.size(), vocabulary().longest());
      std::optional<std::int32_t> found;
      for (; end > prefix && !found; end -= found ? 0 : 1) {
        const bool is_between_chars = end == rest.size() || !U8_IS_TRAIL(rest[end]);
        if (is_between_chars) found = vocabulary().id(rest.substr(0, end));
      }
      if (!found) {
        out.resize(before);
        out.push_back(whole);
        return;
      }
      const auto after = begin + end - prefix;
      out.push_back({*found, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(after)});
      begin = after;
    }
  }
  [[nodiscard]] std::string kind() const override { return "WordPiece"; }

 private:
  WordPieceOptions options_;
};

}  // namespace

std::unique_ptr<TokenModel> word_piece(Vocabulary vocabulary, WordPieceOptions options) {
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(options));
}

}  // namespace trireme::tokenizers
