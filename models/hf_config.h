// Helpers that convert models' options from and to Hugging Face's config.json.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace trireme::models {

/// A model's config.json, whose values go into options.
class HfConfig {
 public:
  HfConfig(nlohmann::json values, const std::string& file) : values_(std::move(values)), file_(file) {}

  /// Copies the value of `name` into `option` if the user did not set it; otherwise the two must be equal. `cause`: the
  /// key that the user wrote, if it is not `key`.
  template <class T>
  void take(const char* name, const std::string& key, std::optional<T>& option, const char* cause = nullptr) const {
    if (!values_.contains(name) || values_[name].is_null()) return;
    const T value = get<T>(name);
    const std::string written = cause != nullptr ? cause : key;
    if (option && *option != value)
      throw ConfigError(
          fmt::format("model.{0}: {1} = {2}, but {3} says {4} = {5}; leave {0} out, or choose other weights", written,
                      key, *option, file_, name, value));
    option = value;
  }
  /// For options that may differ from the weights: the user's value takes precedence.
  template <class T>
  void take_default(const char* name, const char* key, std::optional<T>& option) const {
    if (!option) take(name, key, option);
  }
  /// @throws ConfigError unless `name` is missing or is `supported`
  void check_only(const char* name, const nlohmann::json& supported) const {
    if (const auto value = values_.value(name, supported); value != supported)
      refuse(fmt::format("has {} = {}; only {} is supported", name, value.dump(), supported.dump()));
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw ConfigError(fmt::format("model.weights: {} {}", file_, problem));
  }

 private:
  template <class T>
  T get(const char* name) const {
    try {
      return values_[name].get<T>();
    } catch (const nlohmann::json::exception&) {
      const char* type = std::is_same_v<T, bool>          ? "true or false"
                         : std::is_same_v<T, std::string> ? "a string"
                         : std::is_integral_v<T>          ? "an integer"
                                                          : "a number";
      refuse(fmt::format("has {} = {}; it must be {}", name, values_[name].dump(), type));
    }
  }
  nlohmann::json values_;
  std::string file_;
};

/// Adds id2label and label2id: the classes by number. Those without a name are called LABEL_N, as by Hugging Face.
inline void add_labels(nlohmann::json& config, std::int64_t classes, const std::vector<std::string>& names) {
  config["id2label"] = config["label2id"] = nlohmann::json::object();
  for (std::int64_t i = 0; i < classes; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const auto name = index < names.size() ? names[index] : fmt::format("LABEL_{}", i);
    config["id2label"][std::to_string(i)] = name;
    config["label2id"][name] = i;
  }
}

}  // namespace trireme::models
