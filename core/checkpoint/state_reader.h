// Reads state.json, which is not trusted: it may be damaged, or written by hand. See train_state.h for what it holds.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/checkpoint/train_state.h"

namespace trireme::checkpoint {

inline constexpr int kStateFormat = 1;

/// All of the record but its configuration. The seed must be an integer, counts also not negative, and a loss scale
/// finite numbers. `path` names the file in errors. @throws CheckpointError
TrainRecord parse_state(const std::string& text, const std::string& path);

/// The count that the object has for the key: an integer that is not negative. `path` names the file in errors.
/// @throws CheckpointError, and nlohmann::json::exception when it is no object or has no such key
std::int64_t count_in(const nlohmann::json& object, const char* key, const std::string& path);

}  // namespace trireme::checkpoint
