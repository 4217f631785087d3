// What Python's str does, on UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::jinja {

/// Strips characters that are in `chars`, or white space.
std::string_view strip(std::string_view text, std::optional<std::string_view> chars, bool at_begin, bool at_end);
std::vector<std::string_view> chars_of(std::string_view text);
/// Splits at a separator, or at white space; at most `most` times unless it is negative.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t most = -1);
/// Where a part begins, or npos. Its time is linear, which std::string::find does not promise.
std::size_t find_part(std::string_view text, std::string_view part);
std::string replace(std::string_view text, std::string_view from, std::string_view to);
/// The characters of HTML's syntax as its entities.
std::string escape(std::string_view text);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

/// repr() of Python.
std::string quoted_text(std::string_view text);
std::string float_text(double value);

}  // namespace trireme::jinja
