#include "tokenizers/unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/base/error.h"
#include "tokenizers/pattern.h"
#include "tokenizers/piece_cache.h"
#include "tokenizers/prefix_tree.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

class Unigram : public TokenModel {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options)
      : TokenModel(std::move(vocabulary)), scores_(std::move(scores)), options_(options) {
    std::vector<std::pair<std::string_view, std::int32_t>> tokens;
    for (std::int32_t id = 0; id < this->vocabulary().end(); ++id)
      if (const auto* text = this->vocabulary().text(id); text != nullptr && !text->empty())
        tokens.emplace_back(*text, id);
    tree_ = PrefixTree(std::move(tokens));
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
    for (std::size_t byte = 0; byte < bytes_.size(); ++byte)
      bytes_[byte] = this->vocabulary().id(fmt::format("<0x{:02X}>", byte));
  }
  void encode(std::string_view piece, PieceTokens& out) const override {
    const bool is_cached = piece.size() <= PieceCache::kLongestPiece;
    if (is_cached && cache_.find(piece, out)) return;
    const auto tokens = best(piece);
    if (is_cached) cache_.add(piece, tokens);
    out.insert(out.end(), tokens.begin(), tokens.end());
  }
  [[nodiscard]] std::string kind() const override { return "Unigram"; }

 private:
  /// The best way to a place in the piece.
  struct Place {
    double score = 0;
    std::size_t from = kNowhere;  ///< where its last token begins
    bool is_known = true;         ///< that token
  };

  [[nodiscard]] PieceTokens best(std::string_view piece) const {
    std::vector<Place> places(piece.size() + 1);
    const auto reach = [&](std::size_t to, double score, std::size_t from, bool is_known) {
      auto& place = places[to];
      if (place.from == kNowhere || score > place.score) place = {score, from, is_known};
    };
    for (std::size_t at = 0; at < piece.size();) {
      auto next = at;
      next_char(piece, next);
      bool has_character = false;
      const auto score = places[at].score;
      tree_.prefixes(piece.substr(at), [&](std::size_t length, std::int32_t id) {
        reach(at + length, score + scores_[static_cast<std::size_t>(id)], at, id != options_.unknown);
        has_character = has_character || at + length == next;
      });
      if (!has_character) reach(next, score + unknown_score_, at, false);
      at = next;
    }
    std::vector<Range> tokens;  // the last first; unknown neighbours as one
    bool joins = false;
    for (auto end = piece.size(); end > 0; end = places[end].from) {
      const auto& place = places[end];
      if (joins && !place.is_known)
        tokens.back().begin = place.from;
      else
        tokens.push_back({place.from, end});
      joins = !place.is_known;
    }
    PieceTokens out;
    for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) append(piece, *token, out);
    return out;
  }
  void append(std::string_view piece, Range range, PieceTokens& out) const {
    const auto token = piece.substr(range.begin, range.end - range.begin);
    const auto push = [&](std::int32_t id) {
      out.push_back({id, static_cast<std::uint32_t>(range.begin), static_cast<std::uint32_t>(range.end)});
    };
    if (const auto id = vocabulary().id(token)) {
      push(*id);
      return;
    }
    const auto has_token = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)].has_value(); };
    if (options_.byte_fallback && std::all_of(token.begin(), token.end(), has_token)) {
      for (const char byte : token) push(*bytes_[static_cast<unsigned char>(byte)]);
    } else if (options_.unknown) {
      push(*options_.unknown);
    } else {
      throw DataError(fmt::format("the tokenizer has no token for \"{}\", and none for unknown characters", token));
    }
  }

  std::vector<double> scores_;
  UnigramOptions options_;
  PrefixTree tree_;
  double unknown_score_ = 0;
  std::array<std::optional<std::int32_t>, 256> bytes_{};
  mutable PieceCache cache_;
};

}  // namespace

std::unique_ptr<TokenModel> unigram(Vocabulary vocabulary, std::vector<double> scores, UnigramOptions options) {
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), options);
}

}  // namespace trireme::tokenizers
