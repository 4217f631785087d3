#include "core/checkpoint/state_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"

namespace trireme::checkpoint {
namespace {

template <class... Args>
CheckpointError invalid(const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
  return CheckpointError(
      fmt::format("{}: not a valid training state: {}", path, fmt::format(text, std::forward<Args>(args)...)));
}

std::int64_t integer(const nlohmann::json& value, const char* key, const std::string& path) {
  if (!value.is_number()) throw invalid(path, "{} is a JSON {}", key, value.type_name());
  if (!is_int64(value)) throw invalid(path, "{} is {}, which is not an integer below 2^63", key, json_text(value));
  return value.get<std::int64_t>();
}

class StateReader {
 public:
  explicit StateReader(const std::string& path) : path_(path) {}

  [[nodiscard]] TrainRecord read(const nlohmann::json& from) const {
    if (!from.is_object()) throw invalid(path_, "a JSON {} in place of an object", from.type_name());
    if (const auto format = count(from, "format"); format != kStateFormat)
      throw CheckpointError(
          fmt::format("{}: format {}, but this version reads format {}", path_, format, kStateFormat));
    TrainRecord record;
    const auto& p = from.at("progress");
    record.progress = {count(p, "epoch"), count(p, "step_in_epoch"), count(p, "global_step"), count(p, "samples")};
    record.seed = integer(from.at("seed"), "seed", path_);
    if (const auto& scale = from.at("loss_scale"); !scale.is_null()) record.loss_scale = numbers(scale, "loss_scale");
    for (const auto& [what, version] : from.at("versions").items()) record.versions[what] = version;
    record.extra = from.at("extra");
    return record;
  }

 private:
  [[nodiscard]] std::int64_t count(const nlohmann::json& from, const char* key) const {
    return count_in(from, key, path_);
  }

  [[nodiscard]] std::vector<double> numbers(const nlohmann::json& from, const char* key) const {
    std::vector<double> out;
    if (!from.is_array()) throw invalid(path_, "{} is a JSON {}", key, from.type_name());
    for (const auto& value : from) {
      if (!value.is_number() || !std::isfinite(value.get<double>()))
        throw invalid(path_, "{} has a {}", key, json_text(value));
      out.push_back(value.get<double>());
    }
    return out;
  }

  const std::string& path_;
};

}  // namespace

TrainRecord parse_state(const std::string& text, const std::string& path) {
  try {
    return StateReader(path).read(parse_json(text));
  } catch (const nlohmann::json::exception& error) {
    throw invalid(path, "{}", json_problem(error));
  }
}

std::int64_t count_in(const nlohmann::json& object, const char* key, const std::string& path) {
  const auto out = integer(object.at(key), key, path);
  if (out < 0) throw invalid(path, "{} is {}", key, out);
  return out;
}

}  // namespace trireme::checkpoint
