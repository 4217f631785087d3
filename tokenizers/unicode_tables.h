// What Hugging Face's tokenizers 0.23.3 take each code point for. Its parts have tables of several versions of Unicode:
// 16 in regular expressions, 17 in letters' case, numbers and grapheme clusters, 8 and 9 in BERT's parts, punctuation
// and marks. Ids depend on them and must not depend on the machine's ICU, so that they are kept here; normal forms are
// ICU's (normal_form.h).
//
// unicode_tables.cpp is made by tests/golden/make/make_unicode.py, which asks that library about each code point.
// Source: Unicode Character Database, https://www.unicode.org/ucd.
#pragma once

#include <unicode/uchar.h>

#include <cstdint>
#include <span>

namespace trireme::tokenizers {

enum CharFlag : std::uint16_t {
  kIsWhiteSpace = 1,
  kIsWord = 2,         ///< \w of Whitespace and of added tokens
  kIsNumber = 4,       ///< of Digits
  kIsPunctuation = 8,  ///< of BERT's pre-tokenizer and Punctuation
  kIsControl = 16,     ///< what BERT's normalizer leaves out
  kIsNonspacing = 32,  ///< marks that BERT's normalizer leaves out
  kIsMark = 64,        ///< marks that StripAccents leaves out
  kIsPicture = 128,    ///< Extended_Pictographic
  kIsConsonant = 256,  ///< Indic_Conjunct_Break = Consonant
  kIsLinker = 512,     ///< Indic_Conjunct_Break = Linker
  kIsHan = 1024,       ///< \p{Han} of regular expressions
};

struct CharClass {
  UCharCategory category;         ///< \p{..} of regular expressions
  std::uint16_t flags;            ///< of CharFlag
  UGraphemeClusterBreak cluster;  ///< U_GCB_LV also for U_GCB_LVT
};

/// Neighbouring code points of a class; all runs together are those from U+0000 to U+10FFFF.
struct ClassRun {
  std::uint32_t length, index;  ///< index: in char_classes()
};

/// Characters whose lowercase is `added` further: every `step`-th from `first` to `last`.
struct LowercaseRun {
  char32_t first, last;
  std::uint32_t step;
  std::int32_t added;
};

std::span<const CharClass> char_classes();
std::span<const ClassRun> class_runs();
/// In rising order.
std::span<const LowercaseRun> lowercase_runs();

}  // namespace trireme::tokenizers
