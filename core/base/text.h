// Small helpers for messages: the nearest name, numbers for people.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

/// The candidate nearest to `name` by edit distance, or "" when none is near (more than a third of its letters differ).
std::string nearest(std::string_view name, std::span<const std::string> candidates);

/// `; did you mean "tp"?` for the nearest candidate, or "" when none is near. To be put at the end of a sentence.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

/// 1034 -> "1,034".
std::string thousands(std::int64_t n);

/// "1 epoch", "1,034 epochs": the number with its noun, which takes an s unless there is one of it.
std::string counted(std::int64_t n, std::string_view noun);

/// Bytes for people, powers of 1024: 1536 -> "1.5 KiB".
std::string bytes(double n);

/// {"a","b","c"} -> "a, b, c".
std::string join(std::span<const std::string> parts, std::string_view separator = ", ");

/// The first five, then how many were left out: "a, b, c, d, e and 3 more".
std::string first_few(std::span<const std::string> parts);

/// Lines of at most `columns` characters, broken at spaces. What goes on in a new line is indented by `hang`, or by two
/// more than its line is. Lines that fit stay as they are, and words that no line holds stay whole. columns 0: as it
/// is.
std::string wrap(std::string_view text, std::size_t columns, std::optional<std::size_t> hang = std::nullopt);

/// How many columns a UTF-8 text takes.
std::size_t width(std::string_view text);

/// The same text when it is UTF-8; bytes that are not become \xNN, so that a name can be told on any screen.
std::string printable(std::string_view text);

/// True when `name` matches `pattern`, in which `*` stands for any run of characters and the rest for itself; a
/// pattern without `*` matches anywhere in the name ("bias" matches "vit.layernorm.bias").
bool matches(std::string_view name, std::string_view pattern);

}  // namespace trireme::text
