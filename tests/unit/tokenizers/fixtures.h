// The fixtures in tests/golden/tokenizers, and the hashes that make_tokenizers.py has of ids and texts.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/random.h"

namespace trireme::tokenizers {

inline const std::string kFixtures = std::string(TRIREME_SOURCE_DIR) + "/tests/golden/tokenizers/";

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

inline nlohmann::json fixture_json(const std::string& name) {
  return nlohmann::json::parse(file_text(kFixtures + name));
}

using Files = std::map<std::string, std::string>;  ///< by name

/// The files of one tokenizer.
inline Files fixture_files(const std::string& name) {
  Files out;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures + name))
    out[entry.path().filename().string()] = file_text(entry.path().string());
  return out;
}

/// The names of all tokenizers.
inline std::vector<std::string> fixture_names() {
  std::vector<std::string> out;
  const auto expected = fixture_json("expected.json");
  for (const auto& [name, of_it] : expected.items()) out.push_back(name);
  return out;
}

/// Texts that are difficult to tokenize; one that is long is stored as its part and how often it is repeated.
inline std::vector<std::string> difficult_lines() {
  std::vector<std::string> out;
  for (const auto& line : fixture_json("lines.json")) {
    if (line.is_string()) {
      out.push_back(line.get<std::string>());
      continue;
    }
    auto& text = out.emplace_back();
    for (int i = 0; i < line.at(1).get<int>(); ++i) text += line.at(0).get<std::string>();
  }
  return out;
}

inline std::string bytes_of(std::span<const std::int32_t> ids) {
  std::string out;
  for (const auto id : ids)
    for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(static_cast<std::uint32_t>(id) >> shift);
  return out;
}

inline std::string short_hash(std::string_view bytes) {
  return fmt::format("{:08x}", static_cast<std::uint32_t>(random::hash(bytes)));
}

inline std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(' ', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

}  // namespace trireme::tokenizers
