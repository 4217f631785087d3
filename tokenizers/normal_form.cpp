#include "tokenizers/normal_form.h"

#include <fmt/format.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::tokenizers {
namespace {

/// Where the properties of a form are.
struct FormData {
  icu::UnicodeSet known;       ///< the characters of Unicode 9
  icu::UnicodeSet unaffected;  ///< stay as they are, and nothing before them matters
  icu::FilteredNormalizer2 properties;

  FormData(const char* name, const char16_t* unaffected_pattern, UErrorCode status = U_ZERO_ERROR)
      : known(u"[:age=9.0:]", status),
        unaffected(unaffected_pattern, status),
        properties(*icu::Normalizer2::getInstance(nullptr, name, UNORM2_COMPOSE, status), known) {
    TRIREME_CHECK(U_SUCCESS(status), "ICU has no normal forms: {}", u_errorName(status));
    known.freeze();
    unaffected.freeze();
  }
};

const FormData& data_of(NormalForm form) {
  static const FormData nfc("nfc", u"[[[:NFC_QC=Yes:]&[:ccc=0:]][:^age=9.0:]]");
  static const FormData nfd("nfc", u"[[[:NFD_QC=Yes:]&[:ccc=0:]][:^age=9.0:]]");
  static const FormData nfkc("nfkc", u"[[[:NFKC_QC=Yes:]&[:ccc=0:]][:^age=9.0:]]");
  static const FormData nfkd("nfkc", u"[[[:NFKD_QC=Yes:]&[:ccc=0:]][:^age=9.0:]]");
  switch (form) {
    case NormalForm::nfc:
      return nfc;
    case NormalForm::nfd:
      return nfd;
    case NormalForm::nfkc:
      return nfkc;
    default:
      return nfkd;
  }
}

struct FormChar {
  UChar32 c;
  int added;  ///< 1: an added character, 0: it replaces one, -n: it replaces n + 1
  int combining_class;
};

std::vector<FormChar> decomposed(std::string_view text, const icu::Normalizer2& properties) {
  std::vector<FormChar> out;
  icu::UnicodeString mapping;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = static_cast<UChar32>(next_char(text, at));
    if (!properties.getDecomposition(c, mapping)) mapping.setTo(c);
    for (std::int32_t i = 0; i < mapping.length(); i = mapping.moveIndex32(i, 1))
      out.push_back({mapping.char32At(i), i == 0 ? 0 : 1, properties.getCombiningClass(mapping.char32At(i))});
  }
  const auto is_starter = [](const FormChar& c) { return c.combining_class == 0; };
  for (auto begin = out.begin(); begin != out.end();) {
    const auto end = std::find_if(begin, out.end(), is_starter);
    std::stable_sort(begin, end, [](const auto& a, const auto& b) { return a.combining_class < b.combining_class; });
    begin = end == out.end() ? end : std::next(end);
  }
  return out;
}

std::vector<FormChar> composed(const std::vector<FormChar>& chars, const icu::Normalizer2& properties) {
  std::vector<FormChar> out;
  auto starter = out.size();  // an index
  bool has_starter = false;
  int last_class = -1;  // of what is behind the starter and did not compose with it
  for (const auto& next : chars) {
    const bool is_reached = has_starter && last_class < next.combining_class;
    const auto made = is_reached ? properties.composePair(out[starter].c, next.c) : U_SENTINEL;
    if (made >= 0) {
      out[starter].c = made;
      out[starter].added += next.added - 1;
      continue;
    }
    if (next.combining_class == 0) starter = out.size();
    has_starter = has_starter || next.combining_class == 0;
    last_class = next.combining_class == 0 ? -1 : next.combining_class;
    out.push_back(next);
  }
  return out;
}

/// Where the last character of a text begins that is not empty.
std::size_t last_char(std::string_view text) {
  auto at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

AlignedText normal_form(const AlignedText& from, NormalForm form) {
  const std::string_view text = from.text();
  if (is_ascii(text)) return from;
  const auto& [known, unaffected, properties] = data_of(form);
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto end_of = [&, &unaffected = unaffected](std::size_t at, USetSpanCondition condition) {
    return at + static_cast<std::size_t>(
                    unaffected.spanUTF8(text.data() + at, static_cast<std::int32_t>(text.size() - at), condition));
  };
  TextEdit out(from);
  for (std::size_t done = 0; done < text.size();) {
    auto begin = end_of(done, USET_SPAN_SIMPLE);
    const auto end = end_of(begin, USET_SPAN_NOT_CONTAINED);
    // What follows may compose with the character before it.
    if (composes && begin > done && end > begin) begin = done + last_char(text.substr(done, begin - done));
    out.keep({done, begin});
    auto chars = decomposed(text.substr(begin, end - begin), properties);
    if (composes) chars = composed(chars, properties);
    for (const auto& made : chars) {
      const auto c = static_cast<char32_t>(made.c);
      made.added > 0 ? out.insert(c) : out.replace(c);
      for (int left_out = made.added; left_out < 0; ++left_out) out.skip();
    }
    if (out.size() > kMostText)
      throw DataError(fmt::format("a text of {} is too long for its normal form; split it",
                                  text::bytes(static_cast<double>(text.size()))));
    done = end;
  }
  return out.finish();
}

}  // namespace trireme::tokenizers
