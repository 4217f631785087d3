// Small helpers for texts: the nearest name, readable numbers, the parsing of whole numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

/// The candidate nearest to `name` by edit distance, or "" if none is near (more than a third of its letters differ).
std::string nearest(std::string_view name, std::span<const std::string> candidates);

/// The keys of a map, or of a list of pairs, in its order.
template <class Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> out;
  for (const auto& [key, value] : map) out.push_back(key);
  return out;
}

/// `; did you mean "tp"?` for the nearest candidate, or "" if none is near. Append it to a sentence.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

/// 1034 -> "1,034".
std::string thousands(std::int64_t n);

/// The whole text as a decimal number; unset if it is anything else, such as one with a blank or a plus sign.
std::optional<std::int64_t> integer(std::string_view text);

/// "1 epoch", "1,034 epochs": the number with its noun, which gets an s unless the number is 1.
std::string quantity(std::int64_t n, std::string_view noun);

/// Readable byte counts, in powers of 1024: 1536 -> "1.5 KiB".
std::string bytes(double n);

/// Seconds as hours, minutes and seconds: 75 -> "0:01:15".
std::string clock(double seconds);

/// "a,b,,c" -> {"a", "b", "", "c"}, and "" -> {""}.
std::vector<std::string> split(std::string_view text, char separator);
/// {"a","b","c"} -> "a, b, c".
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

/// The first of them, then the number of the others: "a, b, c, d, e and 3 more".
std::string first_few(std::span<const std::string> parts, std::size_t shown = 5);

/// Wraps lines at spaces to at most `columns` characters. Continuation lines are indented by `hang`, or by two more
/// than their line. Lines that fit do not change, and words that are too long are not broken. columns 0: no wrapping.
std::string wrap(std::string_view text, std::size_t columns, std::optional<std::size_t> hang = std::nullopt);

/// The number of columns of a UTF-8 text.
std::size_t width(std::string_view text);

/// Rows of cells as lines, in columns two spaces apart and as wide as their widest cell; column i is aligned to the
/// right if right[i], which has an entry for each column. No newline at the end.
std::string columns(std::span<const std::vector<std::string>> rows, const std::vector<bool>& right);

/// The number of bytes before the first that is not UTF-8; all bytes if none is.
std::size_t utf8_prefix(std::string_view text);

/// The same text if it is UTF-8; invalid bytes become \xNN, so that a name can be printed on any terminal.
std::string printable(std::string_view text);

/// The text as one word of a POSIX shell, in quotes where it needs them.
std::string shell_word(std::string_view text);

/// Whether `name` matches `pattern`, in which `*` matches any characters. A pattern without `*` matches anywhere in the
/// name ("bias" matches "vit.layernorm.bias").
bool matches(std::string_view name, std::string_view pattern);

/// Whether it is the path of a file, with a slash or this ending, rather than the name of something known.
bool is_path(std::string_view text, std::string_view ending);

/// Whether all words of `phrase` are in the text between characters that are no letter or digit: "A10" is not in
/// "A100-SXM4-40GB".
bool has_words(std::string_view text, std::string_view phrase);

}  // namespace trireme::text
