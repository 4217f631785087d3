#include "core/nn/model_kind.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "core/base/error.h"

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

/// The stored value as the field's type. @throws nlohmann::json::exception when it has another one
FieldValue of_type(const nlohmann::json& stored, const Field& field) {
  const auto read = [&]<class T>(std::in_place_type_t<T>) -> FieldValue { return stored.get<T>(); };
  if (field.rules.one_for_all && stored.is_number()) return read(std::in_place_type<std::int64_t>);
  switch (field.type) {
    case 1:
      return read(std::in_place_type<bool>);
    case 2:
      return read(std::in_place_type<std::int64_t>);
    case 3:
      return read(std::in_place_type<double>);
    case 4:
      return read(std::in_place_type<std::string>);
    case 5:
      return read(std::in_place_type<std::vector<std::int64_t>>);
    case 6:
      return read(std::in_place_type<std::vector<double>>);
    default:
      return read(std::in_place_type<std::vector<std::string>>);
  }
}

}  // namespace

bool ModelKind::from_hf(void* options, const nlohmann::json& config, const std::string& file) const {
  if (!config.is_object() || config.value("model_type", nlohmann::json()) != fields().choice) return false;
  for (const auto& field : fields().fields) {
    const auto found = config.find(field.key);
    if (found == config.end() || found->is_null()) continue;
    FieldValue theirs;
    try {
      theirs = of_type(*found, field);
    } catch (const nlohmann::json::exception&) {
      throw ConfigError(
          fmt::format("model.weights: {} has {} = {}, which is of another type", file, field.key, found->dump()));
    }
    const auto ours = field.get(options);
    if (ours != field.default_value && ours != theirs)
      throw ConfigError(fmt::format("model.{0}: is {1}, but {2} has {0} = {3}; leave {0} out, or choose other weights",
                                    field.key, as_json(ours).dump(), file, found->dump()));
    field.set(options, theirs);
  }
  return true;
}

nlohmann::json ModelKind::to_hf(const void* options) const {
  nlohmann::json config{{"model_type", fields().choice}};
  for (const auto& field : fields().fields) config[field.key] = as_json(field.get(options));
  return config;
}

}  // namespace trireme::nn
