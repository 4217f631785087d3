// The one place that parses JSON: files of others and of ours, and what ranks send each other. Objects and lists may be
// nested kMostJsonLevels deep, because code that copies, compares or prints a value calls itself for each level.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace trireme {

/// The limit of serde_json, which parses the tokenizer.json and safetensors files of Hugging Face's libraries.
inline constexpr int kMostJsonLevels = 128;

/// `callback`: as nlohmann::json::parse() calls it. @throws nlohmann::json::exception when the text is not JSON or is
/// nested too deeply; json_problem() describes it, with line and column
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& callback = nullptr);

/// The same with the members of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

/// As parse_json(), but null for text that it refuses.
nlohmann::json parse_json_or_null(std::string_view text);

}  // namespace trireme
