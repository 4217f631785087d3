#include "tokenizers/aligned_text.h"

#include <algorithm>

namespace trireme::tokenizers {

AlignedText::AlignedText(std::string text, std::size_t at) : text_(std::move(text)) {
  for (std::size_t end = 0; end < text_.size();) {
    const auto begin = end;
    next_char(text_, end);
    origins_.resize(end, {at + begin, at + end});
  }
}

AlignedText AlignedText::part(Range bytes) const {
  AlignedText out(text_.substr(bytes.begin, bytes.end - bytes.begin));
  if (!origins_.empty())
    out.origins_.assign(origins_.begin() + static_cast<std::ptrdiff_t>(bytes.begin),
                        origins_.begin() + static_cast<std::ptrdiff_t>(bytes.end));
  return out;
}

Range AlignedText::origin(Range bytes) const {
  if (bytes.begin >= bytes.end || bytes.end > origins_.size()) return {};
  return {origins_[bytes.begin].begin, origins_[bytes.end - 1].end};
}

void TextEdit::align_kept(Range bytes) {
  const auto first = from_.origins_.begin();
  out_.origins_.insert(out_.origins_.end(), first + static_cast<std::ptrdiff_t>(bytes.begin),
                       first + static_cast<std::ptrdiff_t>(bytes.end));
  at_ = bytes.end;
  added_ = 0;
}

void TextEdit::align_replaced() {
  out_.origins_.resize(out_.text_.size(), from_.origins_[std::min(at_, from_.origins_.size() - 1)]);
  if (at_ < from_.text_.size()) next_char(from_.text_, at_);
  added_ = 0;
}

void TextEdit::align_inserted() {
  const auto begin = from_.origins_.front().begin;
  added_ = out_.text_.size() - out_.origins_.size();
  out_.origins_.resize(out_.text_.size(), at_ == 0 ? Range{begin, begin} : from_.origins_[at_ - 1]);
}

}  // namespace trireme::tokenizers
