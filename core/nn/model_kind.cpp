#include "core/nn/model_kind.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <variant>

#include "core/base/bounds.h"
#include "core/base/error.h"
#include "core/config/document.h"

namespace trireme::nn {
namespace {

nlohmann::json as_json(const FieldValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>)
          return nullptr;
        else
          return held;
      },
      value);
}

template <class T>
std::optional<T> read_one(const nlohmann::json& stored, const FieldRules& rules) {
  if constexpr (std::is_same_v<T, std::string>)
    return stored.is_string() ? std::optional(stored.get<T>()) : std::nullopt;
  else if constexpr (std::is_same_v<T, bool>)
    return stored.is_boolean() ? std::optional(stored.get<T>()) : std::nullopt;
  else
    return read_number<T>(stored, rules);
}

template <class T>
std::optional<std::vector<T>> read_list(const nlohmann::json& stored, const FieldRules& rules) {
  if (!stored.is_array()) return std::nullopt;
  std::vector<T> out;
  for (const auto& element : stored) {
    const auto value = read_one<T>(element, rules);
    if (!value) return std::nullopt;
    out.push_back(*value);
  }
  return out;
}

/// The stored value as the field's type; unset when it has another one, or a number is out of the field's bounds.
std::optional<FieldValue> of_type(const nlohmann::json& stored, const Field& field) {
  const auto& rules = field.rules;
  if (rules.one_for_all && stored.is_number()) return read_one<std::int64_t>(stored, rules);
  switch (field.type) {
    case 1:
      return read_one<bool>(stored, rules);
    case 2:
      return read_one<std::int64_t>(stored, rules);
    case 3:
      return read_one<double>(stored, rules);
    case 4:
      return read_one<std::string>(stored, rules);
    case 5:
      return read_list<std::int64_t>(stored, rules);
    case 6:
      return read_list<double>(stored, rules);
    default:
      return read_list<std::string>(stored, rules);
  }
}

}  // namespace

bool ModelKind::from_hf(void* options, const nlohmann::json& config, const std::string& file) const {
  if (!config.is_object() || config.value("model_type", nlohmann::json()) != fields().choice) return false;
  for (const auto& field : fields().fields) {
    const auto found = config.find(field.key);
    if (found == config.end() || found->is_null()) continue;
    const auto theirs = of_type(*found, field);
    if (!theirs)
      throw ConfigError(fmt::format("model.weights: {} has {} = {}; it must be {}", file, field.key, found->dump(),
                                    config::allowed_text(field)));
    const auto ours = field.get(options);
    if (ours != field.default_value && ours != *theirs)
      throw ConfigError(fmt::format("model.{0}: is {1}, but {2} has {0} = {3}; leave {0} out, or choose other weights",
                                    field.key, as_json(ours).dump(), file, found->dump()));
    field.set(options, *theirs);
  }
  return true;
}

nlohmann::json ModelKind::to_hf(const void* options) const {
  nlohmann::json config{{"model_type", fields().choice}};
  for (const auto& field : fields().fields) config[field.key] = as_json(field.get(options));
  return config;
}

}  // namespace trireme::nn
