#include "apps/commands/text_table.h"

#include <fmt/ranges.h>

#include <chrono>
#include <ctime>

#include "core/base/safetensors_file.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

std::string formatted_time(std::filesystem::file_time_type time, bool utc) {
  const auto system = std::chrono::file_clock::to_sys(time);
  const auto seconds =
      std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::system_clock::duration>(system));
  std::tm parts{};
  utc ? gmtime_r(&seconds, &parts) : localtime_r(&seconds, &parts);
  char text[32] = "";
  return {text, std::strftime(text, sizeof text, utc ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%d %H:%M:%S", &parts)};
}

}  // namespace

std::string text_table(std::vector<std::vector<std::string>> rows) {
  std::vector<bool> right;
  for (auto& title : rows.front()) {
    right.push_back(title.starts_with('>'));
    if (right.back()) title.erase(0, 1);
  }
  for (auto& row : rows)
    for (auto& cell : row) cell = text::printable(cell);
  return text::columns(rows, right) + "\n";
}

std::string dtype_text(c10::ScalarType dtype) {
  const auto name = safetensors_name(dtype);
  return name.empty() ? c10::getDtypeNames(dtype).first : name;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string time_text(std::filesystem::file_time_type time) { return formatted_time(time, false); }
std::string utc_text(std::filesystem::file_time_type time) { return formatted_time(time, true); }

}  // namespace trireme::apps
