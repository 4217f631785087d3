// LineReader: the lines of a text file one by one, so that a file of any size is never in memory as a whole.
//
// A line ends with "\n" or "\r\n", or with the file. The text is UTF-8; a byte order mark at its beginning is left out.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::datasets {

class LineReader {
 public:
  /// @throws DataError when the file cannot be opened, or is empty
  explicit LineReader(std::string path);
  /// The next line without its end, valid until the next call; nullopt: the end of the file.
  /// @throws DataError when it cannot be read or is not UTF-8
  std::optional<std::string_view> next();
  /// The same, passing over lines of spaces and tabs alone.
  std::optional<std::string_view> next_with_text();
  /// The number of the line that was returned last, from 1.
  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_, line_;
  std::ifstream file_;
  std::int64_t number_ = 0;
};

/// The JSON object of a line that `in` has returned. `like`: what a line holds, for errors. @throws DataError
nlohmann::json parse_object(const LineReader& in, std::string_view line, const std::string& like);
/// The same with the members in the order of the line.
nlohmann::ordered_json parse_ordered_object(const LineReader& in, std::string_view line, const std::string& like);

/// @throws DataError "path:line: what"
[[noreturn]] void fail_at_line(const std::string& path, std::int64_t line, const std::string& what);
/// Checks that a part of a file is UTF-8. `line`: the part's first, for the error. @throws DataError
void check_utf8(std::string_view part, const std::string& path, std::int64_t line);
/// Opens a text file. @throws DataError when it cannot be opened, or is empty
std::ifstream open_text(const std::string& path);

}  // namespace trireme::datasets
