// Numbers and the bounds that a field's rules set them (FieldRules), in the user's TOML files and in JSON files of
// others, whose sizes of models are checked by the same rules as those of [model].
#pragma once

#include <concepts>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "core/base/fields.h"

namespace trireme {

/// The bounds of a size for which no field has rules.
inline const FieldRules& size_rules() {
  static const FieldRules rules{.min = 1, .max = INT32_MAX};
  return rules;
}

/// Whether the number is finite and keeps the bounds.
bool in_bounds(double value, const FieldRules& rules);
/// "at least 0 and below 1"; "" if the rules have no bounds.
std::string bounds_text(const FieldRules& rules);

/// The number that a JSON file has; unset when it is of another type, has a fraction where T is an integer, or is out
/// of bounds. The library's get() would convert any number.
template <class T>
std::optional<T> read_number(const nlohmann::json& value, const FieldRules& rules);
template <>
std::optional<std::int64_t> read_number(const nlohmann::json& value, const FieldRules& rules);
template <>
std::optional<double> read_number(const nlohmann::json& value, const FieldRules& rules);
/// What read_number<T>() accepts: "an integer, at least 1", "a number, at least 0 and below 1".
template <class T>
std::string number_text(const FieldRules& rules) {
  const auto bounds = bounds_text(rules);
  return (std::integral<T> ? "an integer" : "a number") + (bounds.empty() ? "" : ", " + bounds);
}

}  // namespace trireme
