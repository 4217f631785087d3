// Byte-pair encoding: a piece begins as its characters, and the pair of neighbours that stands first in the list of
// merges becomes one token, until no pair is in the list (Sennrich et al., "Neural machine translation of rare words
// with subword units", 2016).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "tokenizers/model.h"
#include "tokenizers/vocabulary.h"

namespace trireme::tokenizers {

/// What becomes of a pair of tokens.
struct Merge {
  std::int32_t rank = 0;  ///< lower ranks are merged first
  std::int32_t merged = 0;
};

class MergeTable {
 public:
  /// A pair that is there already gets the new merge.
  void set(std::int32_t left, std::int32_t right, Merge merge) { merges_[key(left, right)] = merge; }
  /// Null if the two do not merge.
  [[nodiscard]] const Merge* find(std::int32_t left, std::int32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

 private:
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  struct Hash {
    std::size_t operator()(std::uint64_t key) const { return (key ^ (key >> 29)) * 0x9E3779B97F4A7C15ULL >> 16; }
  };
  std::unordered_map<std::uint64_t, Merge, Hash> merges_;
};

struct BpeOptions {
  std::optional<std::int32_t> unknown{};  ///< unset: unknown characters are left out
  bool fuse_unknown = false;              ///< neighbouring unknown characters are one token
  bool byte_fallback = false;             ///< an unknown character is the tokens of its bytes, "<0x0A>"
  bool ignore_merges = false;             ///< a piece that is a token needs no merges
  bool byte_level = false;                ///< for kind() alone
  std::string prefix{}, suffix{};         ///< of the characters but the first of a piece, and of its last
};
std::unique_ptr<TokenModel> bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options);

}  // namespace trireme::tokenizers
