// AddedTokens: tokens that are found in a text before anything else happens to it, special ones among them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizers/json_view.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/pattern.h"
#include "tokenizers/vocabulary.h"

namespace trireme::tokenizers {

struct AddedToken {
  std::string content{};
  std::int32_t id = 0;
  bool single_word = false;             ///< not next to a character of a word
  bool lstrip = false, rstrip = false;  ///< it takes the white space before it and after it
  bool normalized = false;              ///< it is looked for in the normalized text, in its own normalized form
  bool special = false;                 ///< decode() leaves it out
};

/// A part of a text.
struct TextPart {
  Range range{};
  std::optional<std::int32_t> token{};  ///< unset: ordinary text
};

class AddedTokens {
 public:
  AddedTokens() = default;
  AddedTokens(AddedTokens&&) = default;  // not copied: the index points to the tokens
  AddedTokens& operator=(AddedTokens&&) = default;
  /// `normalized` gives a text's normalized form. No content, nor its normalized form, is empty.
  AddedTokens(std::vector<AddedToken> tokens, const std::function<std::string(const std::string&)>& normalized);

  /// Parts that together are the whole text. `in_normalized`: the tokens of normalized text, else the others.
  [[nodiscard]] std::vector<TextPart> split(std::string_view text, bool in_normalized) const;
  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }
  /// What a decoder gets of the token: what is looked for in a text. Null if this is none of them.
  [[nodiscard]] const std::string* decoded(std::int32_t id) const;
  [[nodiscard]] bool is_special(std::int32_t id) const { return special_.contains(id); }

 private:
  struct Wanted {
    std::string text;
    const AddedToken* token = nullptr;
  };
  /// What to look for, by its first byte, the longest first.
  using Index = std::array<std::vector<Wanted>, 256>;
  [[nodiscard]] static const Wanted* longest_at(const Index& index, std::string_view rest);

  std::vector<AddedToken> tokens_;
  Vocabulary vocabulary_;
  std::unordered_set<std::int32_t> special_;
  std::unordered_map<std::int32_t, std::string> decoded_;
  Index raw_, normalized_;
};

/// Reads added tokens, whose ids Hugging Face's library gives out in their order and does not take from the file.
class AddedTokensReader {
 public:
  /// `model` outlives the reader. `as_written`: every token is looked for in the text as it is.
  explicit AddedTokensReader(const Vocabulary& model, bool as_written = false)
      : model_(model), as_written_(as_written) {}

  /// Adds the token in `json`. @throws DataError when `id` is not the one that it gets: the model's of this text, else
  /// the next after the model's tokens and those added before
  void add(const JsonView& json, std::int64_t id);
  /// Adds special tokens of the model that are to be found in texts; others and those that are there are left out.
  void add_special(const std::vector<std::string>& contents);
  /// @throws DataError that names `path` when the normalized form of a token is empty
  AddedTokens finish(const Normalizer& normalizer, const std::string& path);

 private:
  [[nodiscard]] std::int64_t next_id() const;

  const Vocabulary& model_;
  bool as_written_;
  Vocabulary added_;
  std::vector<AddedToken> tokens_;
};

}  // namespace trireme::tokenizers
