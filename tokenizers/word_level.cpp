#include "tokenizers/model.h"

namespace trireme::tokenizers {
namespace {

class WordLevel : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, std::int32_t unknown) : TokenModel(std::move(vocabulary)), unknown_(unknown) {}
  void encode(std::string_view piece, PieceTokens& out) const override {
    out.push_back({vocabulary().id(piece).value_or(unknown_), 0, static_cast<std::uint32_t>(piece.size())});
  }
  [[nodiscard]] std::string kind() const override { return "WordLevel"; }

 private:
  std::int32_t unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> word_level(Vocabulary vocabulary, std::int32_t unknown) {
  return std::make_unique<WordLevel>(std::move(vocabulary), unknown);
}

}  // namespace trireme::tokenizers
