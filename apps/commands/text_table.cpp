#include "apps/commands/text_table.h"

#include <fmt/ranges.h>

#include <algorithm>
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

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> cells = rows;
  std::vector<bool> right;
  std::vector<std::size_t> widths;
  for (auto& title : cells.front()) {
    right.push_back(title.starts_with('>'));
    if (right.back()) title.erase(0, 1);
  }
  for (auto& row : cells)
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = text::printable(row[i]);
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], text::width(row[i]));
    }
  std::string out;
  for (const auto& row : cells) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - text::width(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right[i] ? space + row[i] : row[i] + space);
    }
    out += line.erase(line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string dtype_text(c10::ScalarType dtype) {
  const auto name = safetensors_name(dtype);
  return name.empty() ? c10::getDtypeNames(dtype).first : name;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string time_text(std::filesystem::file_time_type time) { return formatted_time(time, false); }
std::string utc_text(std::filesystem::file_time_type time) { return formatted_time(time, true); }

}  // namespace trireme::apps
