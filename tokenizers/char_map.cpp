#include "tokenizers/char_map.h"

#include <fmt/format.h>
#include <unicode/utf8.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tokenizers/pattern.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

constexpr std::size_t kLongestCluster = 5;  // bytes

/// A unit of the trie: a byte, where its children are, and whether a value is among them.
struct Unit {
  std::uint32_t bits;
  [[nodiscard]] bool has_value() const { return (bits >> 8 & 1) != 0; }
  [[nodiscard]] std::uint32_t value() const { return bits & 0x7FFFFFFF; }
  [[nodiscard]] std::uint32_t label() const { return bits & 0x800000FF; }
  [[nodiscard]] std::uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
};

class CharMap {
 public:
  explicit CharMap(std::string_view bytes) {
    std::uint32_t size = 0;
    if (bytes.size() < sizeof size) throw PartError("it is too short");
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (size > bytes.size() || size % sizeof(Unit) != 0 || size == 0) throw PartError("the size of its trie is wrong");
    units_.resize(size / sizeof(Unit));
    std::memcpy(units_.data(), bytes.data(), size);
    texts_ = bytes.substr(size);
    if (invalid_byte(texts_)) throw PartError("its texts are not UTF-8");
  }

  /// The text of the shortest entry that `text` begins with. A damaged trie may lead nowhere, but not out of the map.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const {
    std::size_t at = units_[0].offset();
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      if (byte == 0 || at >= units_.size() || units_[at].label() != byte) return std::nullopt;
      const auto unit = units_[at];
      at ^= unit.offset();
      if (unit.has_value()) return at < units_.size() ? text_at(units_[at].value()) : std::nullopt;
    }
    return std::nullopt;
  }

  [[nodiscard]] AlignedText normalized(const AlignedText& from) const {
    const auto& text = from.text();
    TextEdit out(from);
    const auto replace = [&](std::string_view part, std::string_view made) {
      if (out.size() + made.size() > kMostText)
        throw DataError(
            fmt::format("a text of {} bytes becomes too long when the tokenizer normalizes it; split it", text.size()));
      auto left = count_chars(part);
      for (std::size_t at = 0; at < made.size();) {
        const auto c = next_char(made, at);
        left > 0 ? out.replace(c) : out.insert(c);
        if (left > 0) --left;
      }
      // Hugging Face's library forgets characters that are left out at the beginning; later ones stand for them.
      for (; left > 0 && out.size() > 0; --left) out.skip_into_added();
    };
    for (std::size_t at = 0; at < text.size();) {
      const auto end = cluster_end(text, at);
      const auto cluster = std::string_view(text).substr(at, end - at);
      if (const auto whole = cluster.size() <= kLongestCluster ? find(cluster) : std::nullopt) {
        replace(cluster, *whole);
        at = end;
      }
      while (at < end) {
        const auto begin = at;
        next_char(text, at);
        const auto character = std::string_view(text).substr(begin, at - begin);
        replace(character, find(character).value_or(character));
      }
    }
    return out.finish();
  }

 private:
  [[nodiscard]] std::optional<std::string_view> text_at(std::size_t begin) const {
    if (begin >= texts_.size() || U8_IS_TRAIL(texts_[begin])) return std::nullopt;
    const auto rest = std::string_view(texts_).substr(begin);
    return rest.substr(0, rest.find('\0'));
  }

  std::vector<Unit> units_;
  std::string texts_;
};

}  // namespace

Normalizer char_map_normalizer(std::string_view bytes) {
  return [map = std::make_shared<const CharMap>(bytes)](const AlignedText& text) { return map->normalized(text); };
}

}  // namespace trireme::tokenizers
