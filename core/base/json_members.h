// Members of JSON objects that others may have written: of another type they count as missing, instead of an exception.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

inline std::optional<double> number_in(const nlohmann::json& of, const char* key) {
  const auto found = of.find(key);
  return found != of.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

/// "" for none.
inline std::string text_in(const nlohmann::json& of, const char* key) {
  const auto found = of.find(key);
  return found != of.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Whether the member is this text. Copies nothing.
inline bool is_in(const nlohmann::json& of, const char* key, std::string_view text) {
  const auto found = of.find(key);
  return found != of.end() && found->is_string() && found->get_ref<const std::string&>() == text;
}

}  // namespace trireme
