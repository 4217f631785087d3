// AlignedText: a text that is normalized and cut on its way to tokens and, where that is asked for, knows which part of
// the user's text each of its bytes stands for. Encoding does not ask: then it is a string, and nothing else is
// computed.
//
// A character that replaces another stands for what that one stood for; one that is added, for what the character
// before it stood for. So Hugging Face's NormalizedString has it, whose offsets these are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizers/unicode.h"

namespace trireme::tokenizers {

/// Bytes of a text.
struct Range {
  std::size_t begin = 0, end = 0;
};

class AlignedText {
 public:
  AlignedText() = default;
  /// Does not know what it stands for.
  explicit AlignedText(std::string text) : text_(std::move(text)) {}
  /// Stands at byte `at` of the user's text.
  AlignedText(std::string text, std::size_t at);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] AlignedText part(Range bytes) const;
  /// The bytes of the user's text that a part stands for; none where that is not known.
  [[nodiscard]] Range origin(Range bytes) const;

 private:
  friend class TextEdit;
  std::string text_;
  std::vector<Range> origins_;  ///< of each byte; empty: not known
};

/// Writes a text anew, from left to right.
class TextEdit {
 public:
  explicit TextEdit(const AlignedText& from) : from_(from), is_aligned_(!from.origins_.empty()) {
    out_.text_.reserve(from.text_.size());
  }
  /// The next bytes stay as they are.
  void keep(Range bytes) {
    out_.text_.append(from_.text_, bytes.begin, bytes.end - bytes.begin);
    if (is_aligned_) align_kept(bytes);
  }
  /// `c` replaces the next character.
  void replace(char32_t c) {
    append_char(out_.text_, c);
    if (is_aligned_) align_replaced();
  }
  /// Adds a character, or a text.
  void insert(char32_t c) {
    append_char(out_.text_, c);
    if (is_aligned_) align_inserted();
  }
  void insert(std::string_view text) {
    out_.text_ += text;
    if (is_aligned_) align_inserted();
  }
  /// Leaves out the next character.
  void skip() {
    if (is_aligned_) next_char(from_.text_, at_);
  }
  /// The same, but a character that was added last stands for the one that is left out.
  void skip_into_added() {
    if (!is_aligned_ || added_ == 0) return skip();
    out_.origins_.resize(out_.origins_.size() - added_);
    align_replaced();
  }
  /// Leaves out what is before byte `end`.
  void skip_to(std::size_t end) { at_ = end; }
  /// Of what is written.
  [[nodiscard]] std::size_t size() const { return out_.text_.size(); }
  [[nodiscard]] AlignedText finish() { return std::move(out_); }

 private:
  void align_kept(Range bytes);
  void align_replaced();
  void align_inserted();

  const AlignedText& from_;
  bool is_aligned_;
  std::size_t at_ = 0;     ///< in from_: of the next character; only where it is aligned
  std::size_t added_ = 0;  ///< bytes that are written last and were added; only where it is aligned
  AlignedText out_;
};

}  // namespace trireme::tokenizers
