"""Makes tokenizers/unicode_tables.cpp: what Hugging Face's tokenizers take each code point for, found by asking the
library, whose parts have Unicode tables of several ages; and tests/golden/unicode.json: hashes of what each part makes
of the code points, a hash for each 4,096 of them.

Grapheme clusters alone cannot be asked for one by one: their classes are those of the package regex, left out where
the library joins otherwise. All of it goes back to Unicode's character database (https://www.unicode.org/ucd).

Run:  python tests/golden/make/make_unicode.py   (tokenizers 0.23.3, regex 2026.11; both files are committed)
"""
import json
import pathlib
import struct

import regex
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from make_tokenizers import LLAMA3_WORDS, short_hash

ROOT = pathlib.Path(__file__).parents[3]
BLOCK = 4096
END = 0x110000
BLOCKS = [[c for c in range(first, first + BLOCK) if not 0xD800 <= c < 0xE000] for first in range(0, END, BLOCK)]
ALL = [c for block in BLOCKS for c in block]
TEXT = "".join(map(chr, ALL))
CATEGORIES = {  # Unicode's names, and ICU's
    "Lu": "U_UPPERCASE_LETTER", "Ll": "U_LOWERCASE_LETTER", "Lt": "U_TITLECASE_LETTER", "Lm": "U_MODIFIER_LETTER",
    "Lo": "U_OTHER_LETTER", "Mn": "U_NON_SPACING_MARK", "Me": "U_ENCLOSING_MARK", "Mc": "U_COMBINING_SPACING_MARK",
    "Nd": "U_DECIMAL_DIGIT_NUMBER", "Nl": "U_LETTER_NUMBER", "No": "U_OTHER_NUMBER", "Zs": "U_SPACE_SEPARATOR",
    "Zl": "U_LINE_SEPARATOR", "Zp": "U_PARAGRAPH_SEPARATOR", "Cc": "U_CONTROL_CHAR", "Cf": "U_FORMAT_CHAR",
    "Co": "U_PRIVATE_USE_CHAR", "Pd": "U_DASH_PUNCTUATION", "Ps": "U_START_PUNCTUATION", "Pe": "U_END_PUNCTUATION",
    "Pc": "U_CONNECTOR_PUNCTUATION", "Po": "U_OTHER_PUNCTUATION", "Sm": "U_MATH_SYMBOL", "Sc": "U_CURRENCY_SYMBOL",
    "Sk": "U_MODIFIER_SYMBOL", "So": "U_OTHER_SYMBOL", "Pi": "U_INITIAL_PUNCTUATION", "Pf": "U_FINAL_PUNCTUATION",
    "Cn": "U_UNASSIGNED"}
CLUSTERS = {"CR": "U_GCB_CR", "LF": "U_GCB_LF", "Control": "U_GCB_CONTROL", "Extend": "U_GCB_EXTEND", "ZWJ": "U_GCB_ZWJ",
            "Regional_Indicator": "U_GCB_REGIONAL_INDICATOR", "Prepend": "U_GCB_PREPEND", "SpacingMark": "U_GCB_SPACING_MARK",
            "L": "U_GCB_L", "V": "U_GCB_V", "T": "U_GCB_T", "LV": "U_GCB_LV", "LVT": "U_GCB_LV"}
GPT4O_WORDS = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
               r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_WORDS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def named(expression):
    """The code points that an expression of the package regex matches."""
    return {ord(c) for c in regex.findall(expression, TEXT)}


def removed(pre_tokenizer):
    out = set(range(len(ALL)))
    for _, (begin, end) in pre_tokenizer.pre_tokenize_str(TEXT):
        out.difference_update(range(begin, end))
    return {ALL[i] for i in out}


def matched(expression):
    return removed(pre_tokenizers.Split(Regex(expression), "removed"))


def between_letters(pre_tokenizer, first, size):
    """Those for which "aXa" has a piece of this size, which begins at its character `first`."""
    out = set()
    for block in BLOCKS:
        pieces = pre_tokenizer.pre_tokenize_str("".join(f"a{chr(c)}a " for c in block))
        begins = {begin for _, (begin, end) in pieces if end - begin == size}
        out |= {c for i, c in enumerate(block) if 4 * i + first in begins}
    return out


def changed(normalizer):
    """{code point: its text}, of those that do not stay as they are."""
    out = {}
    for block in BLOCKS:
        texts = normalizer.normalize_str("qxq".join(map(chr, block))).split("qxq")
        out |= {c: text for c, text in zip(block, texts, strict=True) if text != chr(c)}
    return out


def bert(**on):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**off | on)


def char_map(text):
    """A compiled normalization (tokenizers/char_map.h) that makes Q of `text`."""
    units = [0] * 256
    at, used = 0, {0}
    for byte in [*text.encode(), 0]:
        offset = next(o for o in range(1, 255) if {at ^ o ^ byte, at ^ o}.isdisjoint(used))
        units[at] |= offset << 10 | (0 if byte else 1 << 8)
        at ^= offset ^ byte
        used.add(at)
        units[at] = byte if byte else 1 << 31
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + b"Q\0"


def is_cluster(text):
    """Whether a text of less than 6 bytes is one grapheme cluster."""
    return normalizers.Precompiled(char_map(text[0])).normalize_str(text) == "Q"


def clusters():
    out = {c: icu for name, icu in CLUSTERS.items() for c in named(rf"\p{{GCB={name}}}")}
    for c, kind in list(out.items()):
        if kind in ("U_GCB_EXTEND", "U_GCB_ZWJ", "U_GCB_SPACING_MARK") and not is_cluster("a" + chr(c)):
            del out[c]
        if kind == "U_GCB_PREPEND" and not is_cluster(chr(c) + "a"):
            del out[c]
    return out


def classes():
    """[(category, flags, cluster)] by code point"""
    category = {c: icu for name, icu in CATEGORIES.items() for c in matched(rf"\p{{{name}}}")}
    cluster = clusters()
    flags = {
        "kIsWhiteSpace": removed(pre_tokenizers.WhitespaceSplit()),
        "kIsWord": between_letters(pre_tokenizers.Whitespace(), 0, 3),
        "kIsNumber": between_letters(pre_tokenizers.Digits(True), 1, 1),
        "kIsPunctuation": removed(pre_tokenizers.Punctuation("removed")),
        "kIsControl": {c for c, text in changed(bert(clean_text=True)).items() if text == "" and chr(c) not in "\0\ufffd"},
        "kIsNonspacing": {c for c, text in changed(bert(strip_accents=True)).items() if text == ""},
        "kIsMark": {c for c, text in changed(normalizers.StripAccents()).items() if text == ""},
        "kIsPicture": named(r"\p{Extended_Pictographic}"),
        "kIsConsonant": {c for c in named(r"\p{InCB=Consonant}") if category[c] != "U_UNASSIGNED"},
        "kIsLinker": {c for c in named(r"\p{InCB=Linker}") if category[c] != "U_UNASSIGNED"},
        "kIsHan": matched(r"\p{Han}"),
    }
    out = []
    for c in range(END):
        if 0xD800 <= c < 0xE000:
            out.append(("U_SURROGATE", "0", "U_GCB_CONTROL"))
        else:
            names = [name for name, members in flags.items() if c in members]
            out.append((category[c], " | ".join(names) or "0", cluster.get(c, "U_GCB_OTHER")))
    return out


def runs_of(values):
    """[(length, value)]"""
    out = []
    for value in values:
        if out and out[-1][1] == value:
            out[-1][0] += 1
        else:
            out.append([1, value])
    return out


def lowercase_runs():
    """[first, last, step, what is added]: of the characters whose lowercase is another."""
    out = []
    for c, text in changed(normalizers.Lowercase()).items():
        if len(text) > 1:
            assert (c, text) == (0x130, "i\u0307")  # which the code knows
            text = "i"
        added = ord(text) - c
        last = out[-1] if out else None
        if last and last[3] == added and last[0] == last[1] and c - last[1] <= 2:
            out[-1] = [last[0], c, c - last[0], added]
        elif last and last[3] == added and c - last[1] == last[2]:
            last[1] = c
        else:
            out.append([c, c, 1, added])
    return out


def lines_of(items):
    """Items in lines of at most 120 characters."""
    out = ["   "]
    for item in items:
        if len(out[-1]) + len(item) + 2 > 120:
            out.append("   ")
        out[-1] += f" {item},"
    return "\n".join(out)


def tables():
    by_code_point = runs_of(classes())
    known = sorted({value for _, value in by_code_point})
    return f"""// Made by tests/golden/make/make_unicode.py; see unicode_tables.h.
#include "tokenizers/unicode_tables.h"

namespace trireme::tokenizers {{
namespace {{

// clang-format off
constexpr CharClass kClasses[] = {{
{lines_of([f"{{{category}, {flags}, {cluster}}}" for category, flags, cluster in known])}
}};

constexpr ClassRun kClassRuns[] = {{
{lines_of([f"{{{length},{known.index(value)}}}" for length, value in by_code_point])}
}};

constexpr LowercaseRun kLowercaseRuns[] = {{
{lines_of([f"{{0x{first:X},0x{last:X},{step},{added}}}" for first, last, step, added in lowercase_runs()])}
}};
// clang-format on

}}  // namespace

std::span<const CharClass> char_classes() {{ return kClasses; }}
std::span<const ClassRun> class_runs() {{ return kClassRuns; }}
std::span<const LowercaseRun> lowercase_runs() {{ return kLowercaseRuns; }}

}}  // namespace trireme::tokenizers
"""


def parts():
    """{name: (normalizer or pre-tokenizer, what is before and after each code point)}"""
    split = lambda words: pre_tokenizers.Split(Regex(words), "isolated")
    return {
        "NFC": (normalizers.NFC(), "q", ""), "NFD": (normalizers.NFD(), "q", ""),
        "NFKC": (normalizers.NFKC(), "q", ""), "NFKD": (normalizers.NFKD(), "q", ""),
        "NFD, between marks": (normalizers.NFD(), "a\u0345\u0301", "\u0323\u0334"),
        "NFC, behind a letter": (normalizers.NFC(), "\u1100", "\u0301"),
        "Lowercase": (normalizers.Lowercase(), "", ""), "StripAccents": (normalizers.StripAccents(), "q", ""),
        "Strip": (normalizers.Strip(), "", ""), "Nmt": (normalizers.Nmt(), "", ""),
        "BertNormalizer": (normalizers.BertNormalizer(), "q", ""),
        "BertNormalizer, cased": (bert(clean_text=True, handle_chinese_chars=True), "", ""),
        "Precompiled": (normalizers.Precompiled(char_map("a")), "a", ""),
        "BertPreTokenizer": (pre_tokenizers.BertPreTokenizer(), "a", "a"),
        "Whitespace": (pre_tokenizers.Whitespace(), "a", ","), "WhitespaceSplit": (pre_tokenizers.WhitespaceSplit(), "a", "a"),
        "Punctuation": (pre_tokenizers.Punctuation(), "a", "a"), "Digits": (pre_tokenizers.Digits(False), "a", "1"),
        "ByteLevel": (pre_tokenizers.ByteLevel(add_prefix_space=False), "a", "1"),
        "Split, Llama 3": (split(LLAMA3_WORDS), "1", "a"), "Split, GPT-4o": (split(GPT4O_WORDS), "A", "1"),
        "Split, DeepSeek": (split(DEEPSEEK_WORDS), "a", ","),
        "Split, categories": (split(r"[\p{Lt}\p{Lm}\p{Mc}\p{Me}\p{Nd}\p{Nl}\p{Pc}\p{Pd}\p{Ps}\p{Pi}\p{Sm}\p{Sk}\p{Zs}\p{Cf}\p{Co}]+"), "", ""),
        "Split, others": (split(r"[\p{Lu}\p{Mn}\p{No}\p{Pe}\p{Pf}\p{Po}\p{Sc}\p{Cc}\p{Zl}\p{Co}]+|\p{Han}+"), "", ""),
    }


def stored(part):
    """As in tokenizer.json: {"normalizer": ...} or {"pre_tokenizer": ...}"""
    tokenizer = Tokenizer(models.BPE())
    kind = "normalizer" if isinstance(part, normalizers.Normalizer) else "pre_tokenizer"
    setattr(tokenizer, kind, part)
    return {kind: json.loads(tokenizer.to_str())[kind]}


def is_assigned(c):
    """Whether it is in a plane with characters. The others are tested without neighbours, which is quicker."""
    return c < 0x40000 or 0xE0000 <= c < 0xE1000


def hashes(part, before, after):
    """Of each block: the text that a normalizer makes of its code points, or the pieces, each with U+0000 behind it."""
    out = []
    for block in BLOCKS:
        text = "".join(before + chr(c) + after if is_assigned(c) else chr(c) for c in block)
        if isinstance(part, normalizers.Normalizer):
            made = part.normalize_str(text)
        else:
            made = "".join(piece + "\0" for piece, _ in part.pre_tokenize_str(text))
        out.append(short_hash(made.encode()))
    return " ".join(f"{a}*{n}" if n > 1 else a for n, a in runs_of(out))


def main():
    (ROOT / "tokenizers" / "unicode_tables.cpp").write_text(tables())
    golden = [{"name": name, **stored(part), "before": before, "after": after, "hashes": hashes(part, before, after)}
              for name, (part, before, after) in parts().items()]
    (ROOT / "tests" / "golden" / "unicode.json").write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main()
