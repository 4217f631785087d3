// Rotary positions in config.json: rope_parameters, or in files of older versions rope_theta and rope_scaling.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "core/nn/hf_config.h"
#include "core/nn/layers/rotary_scaling.h"

namespace trireme::models {

/// The file with one object rope_parameters, if it has any, and with rope_theta and partial_rotary_factor beside it.
/// @throws ConfigError where it has an object for each kind of attention
nlohmann::json with_rope_parameters(nlohmann::json config, const std::string& file);

/// Reads what with_rope_parameters() made; `max_positions` is the file's. @throws ConfigError for a type or a parameter
/// that transformers does not have, and for one that is missing
nn::RotaryScaling read_rope(const nn::HfConfig& config, std::int64_t max_positions);

/// Moves rope_theta of a config.json into its rope_parameters, with the scaling.
void write_rope(nlohmann::json& config, const nn::RotaryScaling& scaling);

}  // namespace trireme::models
