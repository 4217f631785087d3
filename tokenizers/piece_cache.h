// PieceCache: the tokens of pieces that occurred before. Words of a language repeat, and a look-up is quicker than to
// encode them again.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "tokenizers/model.h"
#include "tokenizers/vocabulary.h"

namespace trireme::tokenizers {

/// Thread-safe. Holds the first pieces that it meets, up to a limit: the frequent ones come early.
class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 64;  ///< bytes; longer ones hardly repeat

  /// Appends the tokens of `piece` if it is known.
  bool find(std::string_view piece, PieceTokens& out) {
    Part& part = part_of(piece);
    const std::lock_guard lock(part.mutex);
    const auto found = part.tokens.find(piece);
    if (found == part.tokens.end()) return false;
    out.insert(out.end(), found->second.begin(), found->second.end());
    return true;
  }
  void add(std::string_view piece, const PieceTokens& tokens) {
    Part& part = part_of(piece);
    const std::lock_guard lock(part.mutex);
    if (part.tokens.size() < kMostPieces) part.tokens.try_emplace(std::string(piece), tokens);
  }

 private:
  static constexpr std::size_t kParts = 64, kMostPieces = 1024;  // of a part

  /// A part has a lock of its own, so that threads seldom wait for each other.
  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<std::string, PieceTokens, TextHash, std::equal_to<>> tokens;
  };
  Part& part_of(std::string_view piece) { return parts_[TextHash()(piece) % kParts]; }

  std::array<Part, kParts> parts_;
};

}  // namespace trireme::tokenizers
