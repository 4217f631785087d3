// Pattern: where a literal text or a regular expression occurs in a text. Regular expressions are written for
// Oniguruma, as Hugging Face's tokenizers have them, and run by ICU: what the two understand differently is translated
// or refused.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/aligned_text.h"
#include "tokenizers/prefix_tree.h"

namespace trireme::tokenizers {

/// What is wrong with a part of a tokenizer, thrown where the file and the place in it are not known: who knows them
/// makes a DataError of it.
class PartError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thread-safe.
class Pattern {
 public:
  /// `literal` is not empty.
  static Pattern of_literal(std::string literal);
  /// At each place the longest of these, of which none is empty.
  static Pattern of_literals(const std::vector<std::string>& literals);
  /// Each character of a class.
  static Pattern of_chars(bool (*is_in)(char32_t c));
  /// @throws PartError with what is wrong or not supported
  static Pattern of_expression(const std::string& expression);

  /// The matches from left to right. They do not overlap; an empty one is never next to another.
  /// @throws DataError when the expression takes too many steps on this text
  [[nodiscard]] std::vector<Range> find(std::string_view text) const;

 private:
  struct Expression;  ///< ICU's

  Pattern() = default;

  std::string literal_;  ///< or the expression, for messages
  std::shared_ptr<const PrefixTree> literals_;
  std::shared_ptr<const Expression> expression_;
  bool (*is_in_)(char32_t c) = nullptr;
};

}  // namespace trireme::tokenizers
