#include "tokenizers/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizers/piece_cache.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

constexpr std::int32_t kNone = -1;

/// A merge that was possible when it was put into the queue.
struct Candidate {
  std::int32_t rank = 0, merged = 0;
  std::int32_t at = 0;  // the left token's place
  /// The lowest rank comes first, and of equal ranks the leftmost.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

/// A token and how many bytes of the piece it takes.
struct Symbol {
  std::int32_t id = 0;
  std::uint32_t bytes = 0;
};

/// The tokens of a piece as a list: merging two removes the right one.
class TokenList {
 public:
  explicit TokenList(std::vector<Symbol> symbols)
      : symbols_(std::move(symbols)), next_(symbols_.size()), previous_(symbols_.size()) {
    const auto size = static_cast<std::int32_t>(symbols_.size());
    for (std::int32_t at = 0; at < size; ++at) {
      next_[index(at)] = at + 1 < size ? at + 1 : kNone;
      previous_[index(at)] = at - 1;
    }
  }
  [[nodiscard]] std::int32_t id(std::int32_t at) const { return symbols_[index(at)].id; }
  [[nodiscard]] std::int32_t next(std::int32_t at) const { return next_[index(at)]; }
  [[nodiscard]] std::int32_t previous(std::int32_t at) const { return previous_[index(at)]; }
  void merge_with_next(std::int32_t at, std::int32_t merged) {
    const auto removed = next(at), after = next(removed);
    symbols_[index(at)].id = merged;
    symbols_[index(at)].bytes += symbols_[index(removed)].bytes;
    symbols_[index(removed)].id = kNone;
    next_[index(at)] = after;
    if (after != kNone) previous_[index(after)] = at;
  }
  /// One behind the other.
  [[nodiscard]] PieceTokens tokens() const {
    PieceTokens out;
    out.reserve(symbols_.size());
    std::uint32_t begin = 0;
    for (const auto& symbol : symbols_) {
      if (symbol.id == kNone) continue;
      const auto end = begin + symbol.bytes;
      out.push_back({symbol.id, begin, end});
      begin = end;
    }
    return out;
  }

 private:
  static std::size_t index(std::int32_t at) { return static_cast<std::size_t>(at); }
  std::vector<Symbol> symbols_;
  std::vector<std::int32_t> next_, previous_;
};

class Bpe : public TokenModel {
 public:
  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
      : TokenModel(std::move(vocabulary)),
        merges_(std::move(merges)),
        options_(std::move(options)),
        has_affixes_(!options_.prefix.empty() || !options_.suffix.empty()) {
    if (options_.byte_fallback)
      for (std::size_t byte = 0; byte < bytes_.size(); ++byte)
        bytes_[byte] = this->vocabulary().id(fmt::format("<0x{:02X}>", byte));
  }
  void encode(std::string_view piece, PieceTokens& out) const override {
    if (options_.ignore_merges) {
      if (const auto id = vocabulary().id(piece)) {
        out.push_back({*id, 0, static_cast<std::uint32_t>(piece.size())});
        return;
      }
    }
    const bool is_cached = piece.size() <= PieceCache::kLongestPiece;
    if (is_cached && cache_.find(piece, out)) return;
    const auto tokens = merged(characters(piece));
    if (is_cached) cache_.add(piece, tokens);
    out.insert(out.end(), tokens.begin(), tokens.end());
  }
  [[nodiscard]] std::string kind() const override { return options_.byte_level ? "byte-level BPE" : "BPE"; }

 private:
  [[nodiscard]] std::vector<Symbol> characters(std::string_view piece) const {
    std::vector<Symbol> out;
    out.reserve(piece.size());
    std::string with_affixes;
    // The bytes of one that is due, which the next known character puts out: bytes do not, as in Hugging Face's.
    std::uint32_t unknown = 0;
    const auto put_unknown = [&] {
      if (unknown > 0) out.push_back({*options_.unknown, unknown});
      unknown = 0;
    };
    for (std::size_t at = 0; at < piece.size();) {
      const auto begin = at;
      next_char(piece, at);
      auto character = piece.substr(begin, at - begin);
      if (has_affixes_) {
        with_affixes.assign(begin > 0 ? options_.prefix : "").append(character);
        if (at == piece.size()) with_affixes.append(options_.suffix);
        character = with_affixes;
      }
      if (const auto id = vocabulary().id(character)) {
        put_unknown();
        out.push_back({*id, static_cast<std::uint32_t>(at - begin)});
      } else if (!append_bytes(character, out) && options_.unknown) {
        if (!options_.fuse_unknown) put_unknown();
        unknown += static_cast<std::uint32_t>(at - begin);
      }
    }
    put_unknown();
    return out;
  }
  /// Appends the tokens of an unknown character's bytes; false if one of them is no token.
  bool append_bytes(std::string_view character, std::vector<Symbol>& out) const {
    if (!options_.byte_fallback) return false;
    const auto before = out.size();
    for (const char byte : character) {
      const auto id = bytes_[static_cast<unsigned char>(byte)];
      if (!id) {
        out.resize(before);
        return false;
      }
      out.push_back({*id, 1});
    }
    return true;
  }
  [[nodiscard]] PieceTokens merged(std::vector<Symbol> symbols) const {
    const auto size = symbols.size();
    TokenList tokens(std::move(symbols));
    std::vector<Candidate> possible;
    const auto candidate = [&](std::int32_t at) -> std::optional<Candidate> {
      if (at == kNone || tokens.id(at) == kNone || tokens.next(at) == kNone) return std::nullopt;
      const auto* found = merges_.find(tokens.id(at), tokens.id(tokens.next(at)));
      if (found == nullptr) return std::nullopt;
      return Candidate{found->rank, found->merged, at};
    };
    for (std::size_t at = 0; at < size; ++at)
      if (const auto found = candidate(static_cast<std::int32_t>(at))) possible.push_back(*found);
    std::priority_queue queue(std::less<Candidate>(), std::move(possible));
    while (!queue.empty()) {
      const auto top = queue.top();
      queue.pop();
      // Earlier merges may have taken one of the two. As in Hugging Face's, another pair that makes the same token
      // will do.
      if (const auto now = candidate(top.at); !now || now->merged != top.merged) continue;
      tokens.merge_with_next(top.at, top.merged);
      for (const auto at : {tokens.previous(top.at), top.at})
        if (const auto found = candidate(at)) queue.push(*found);
    }
    return tokens.tokens();
  }

  MergeTable merges_;
  BpeOptions options_;
  bool has_affixes_;
  std::array<std::optional<std::int32_t>, 256> bytes_{};
  mutable PieceCache cache_;
};

}  // namespace

std::unique_ptr<TokenModel> bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options) {
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(options));
}

}  // namespace trireme::tokenizers
