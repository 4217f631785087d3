// Vocabulary: the tokens of a model by text and by id.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace trireme::tokenizers {

/// Ids are below this: a model has an embedding of each.
constexpr std::int64_t kMostTokens = 1 << 24;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

class Vocabulary {
 public:
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // not copied: texts by id are those of the other map
  Vocabulary& operator=(Vocabulary&&) = default;
  /// A text that is there already gets the new id, as the later of two lines in a file of Hugging Face's does.
  void set(std::string text, std::int32_t id) {
    longest_ = std::max(longest_, text.size());
    end_ = std::max<std::int64_t>(end_, std::int64_t{id} + 1);
    const auto [at, is_new] = ids_.try_emplace(std::move(text), id);
    if (!is_new) {
      texts_.erase(at->second);
      at->second = id;
    }
    texts_[id] = &at->first;
  }

  [[nodiscard]] std::optional<std::int32_t> id(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Null if no token has this id.
  [[nodiscard]] const std::string* text(std::int32_t id) const {
    const auto found = texts_.find(id);
    return found == texts_.end() ? nullptr : found->second;
  }
  /// The number of texts.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()); }
  /// The highest id, plus one.
  [[nodiscard]] std::int64_t end() const { return end_; }
  /// In bytes.
  [[nodiscard]] std::size_t longest() const { return longest_; }

 private:
  std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>> ids_;
  std::unordered_map<std::int32_t, const std::string*> texts_;
  std::int64_t end_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace trireme::tokenizers
