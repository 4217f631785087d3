#include "models/rope.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace trireme::models {
namespace {

using nn::HfConfig;
using nn::RotaryScaling;

const Fields<RotaryScaling>& rope_fields() {
  using S = RotaryScaling;
  const OnlyWith scaled{"rope_type", {"linear", "dynamic", "llama3", "yarn"}};
  const OnlyWith long_trained{"rope_type", {"llama3", "yarn"}}, llama3{"rope_type", {"llama3"}};
  const OnlyWith yarn{"rope_type", {"yarn"}};
  static const auto table =
      Fields<S>("rope_parameters", "")
          .add("rope_type", &S::type, "", {.choices = {"default", "linear", "dynamic", "llama3", "yarn"}})
          .add("factor", &S::factor, "", {.min = 1, .only = scaled})
          .add("original_max_position_embeddings", &S::original_positions, "", {.min = 1, .only = long_trained})
          .add("low_freq_factor", &S::low_freq_factor, "", {.above = 0, .only = llama3})
          .add("high_freq_factor", &S::high_freq_factor, "", {.above = 0, .only = llama3})
          .add("attention_factor", &S::attention_factor, "", {.above = 0, .only = yarn})
          .add("beta_fast", &S::beta_fast, "", {.above = 0, .only = yarn})
          .add("beta_slow", &S::beta_slow, "", {.above = 0, .only = yarn})
          .add("mscale", &S::mscale, "", {.min = 0, .only = yarn})
          .add("mscale_all_dim", &S::mscale_all_dim, "", {.min = 0, .only = yarn})
          .add("truncate", &S::truncate, "", {.only = yarn});
  return table;
}

constexpr const char *kRope = "rope_parameters", *kType = "rope_type", *kOriginal = "original_max_position_embeddings";

}  // namespace

nlohmann::json with_rope_parameters(nlohmann::json values, const std::string& file) {
  if (!values.is_object()) return values;
  auto all = nlohmann::json::object();
  for (const auto* key : {kRope, "rope_scaling"}) {
    const auto found = values.find(key);
    if (found == values.end() || found->is_null()) continue;
    // Files of other models have an object for each kind of attention.
    const auto is_nested = [](const nlohmann::json& inner) { return inner.is_object(); };
    if (!found->is_object() || std::any_of(found->begin(), found->end(), is_nested))
      throw ConfigError(
          fmt::format("model.weights: {} has {} = {}; it must be one object for all layers", file, key, found->dump()));
    all.update(*found);
  }
  if (all.empty()) return values;
  for (const auto* inner : {"rope_theta", "partial_rotary_factor"})
    if (all.contains(inner)) values[inner] = all[inner];
  if (values.contains(kOriginal)) all[kOriginal] = values[kOriginal];
  all.emplace(kType, all.value("type", nlohmann::json("default")));
  values[kRope] = all;
  return values;
}

RotaryScaling read_rope(const HfConfig& config, std::int64_t max_positions) {
  RotaryScaling out;
  const auto values = config.value(kRope);
  if (values.is_null() || values.empty()) return out;
  const auto& types = rope_fields().find(kType)->rules.choices;
  if (std::find(types.begin(), types.end(), values.at(kType)) == types.end())
    config.refuse(fmt::format("has rotary positions of the type {}; only {} are supported", values.at(kType).dump(),
                              fmt::join(types, ", ")));
  HfConfig(rope_fields(), {}, values, config.file()).take_all(&out);
  if (out.type == "default") return out;
  if (!out.original_positions) out.original_positions = max_positions;
  if (!out.factor && out.type == "yarn")
    out.factor = static_cast<double>(max_positions) / static_cast<double>(*out.original_positions);
  if (!out.factor || (out.type == "llama3" && !(out.low_freq_factor && out.high_freq_factor)))
    config.refuse(fmt::format("has rotary positions of the type \"{}\" without {}, which they need", out.type,
                              out.factor ? "low_freq_factor and high_freq_factor" : "factor"));
  return out;
}

void write_rope(nlohmann::json& config, const RotaryScaling& scaling) {
  auto rope = nn::stored_values(rope_fields(), &scaling);
  for (auto item = rope.begin(); item != rope.end();) item = item->is_null() ? rope.erase(item) : std::next(item);
  rope["rope_theta"] = config.at("rope_theta");
  config.erase("rope_theta");
  config[kRope] = std::move(rope);
}

}  // namespace trireme::models
