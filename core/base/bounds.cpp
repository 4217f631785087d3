#include "core/base/bounds.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme {

bool in_bounds(double value, const FieldRules& rules) {
  return std::isfinite(value) && (!rules.min || value >= *rules.min) && (!rules.max || value <= *rules.max) &&
         (!rules.above || value > *rules.above) && (!rules.below || value < *rules.below);
}

std::string bounds_text(const FieldRules& rules) {
  std::vector<std::string> parts;
  const auto add = [&](const char* phrase, const std::optional<double>& bound) {
    if (bound) parts.push_back(fmt::format("{} {}", phrase, *bound));
  };
  add("at least", rules.min);
  add("above", rules.above);
  add("at most", rules.max);
  add("below", rules.below);
  return text::join(parts, " and ");
}

template <>
std::optional<std::int64_t> read_number(const nlohmann::json& value, const FieldRules& rules) {
  if (!is_int64(value) || !in_bounds(value.get<double>(), rules)) return std::nullopt;
  return value.get<std::int64_t>();
}

template <>
std::optional<double> read_number(const nlohmann::json& value, const FieldRules& rules) {
  if (!value.is_number() || !in_bounds(value.get<double>(), rules)) return std::nullopt;
  return value.get<double>();
}

}  // namespace trireme
