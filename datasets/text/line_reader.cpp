#include "datasets/text/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme::datasets {
namespace {

template <class Parse>
auto object_of_line(const LineReader& in, const std::string& like, const Parse& parse) {
  const auto fail = [&](const std::string& problem) {
    fail_at_line(in.path(), in.number(), fmt::format("{}; each line holds one, as {}", problem, like));
  };
  try {
    auto object = parse();
    if (!object.is_object()) fail("not a JSON object");
    return object;
  } catch (const nlohmann::json::exception& error) {
    fail(fmt::format("the object of this line, {}", json_problem(error)));
    throw;
  }
}

}  // namespace

void fail_at_line(const std::string& path, std::int64_t line, const std::string& what) {
  throw DataError(fmt::format("{}:{}: {}", path, line, what));
}

void check_utf8(std::string_view part, const std::string& path, std::int64_t line) {
  const auto valid = text::utf8_prefix(part);
  if (valid == part.size()) return;
  const auto before = part.substr(0, valid);
  const auto breaks = std::count(before.begin(), before.end(), '\n');
  const auto begin = breaks == 0 ? 0 : before.rfind('\n') + 1;
  fail_at_line(path, line + breaks,
               fmt::format("byte {} of this line, 0x{:02X}, is not UTF-8; convert the file, as with `iconv -f latin1 "
                           "-t utf-8`",
                           valid - begin + 1, static_cast<unsigned char>(part[valid])));
}

std::ifstream open_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    throw DataError(fmt::format("{}: a folder, where a file of text is expected", path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  if (file.peek() == std::ifstream::traits_type::eof()) throw DataError(fmt::format("{}: is empty", path));
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  char first[kByteOrderMark.size()] = {};
  file.read(first, sizeof first);
  const std::string_view begin(first, static_cast<std::size_t>(file.gcount()));
  if (begin == kByteOrderMark) return file;
  if (begin.starts_with("\xFF\xFE") || begin.starts_with("\xFE\xFF"))
    throw DataError(fmt::format("{}: is UTF-16; convert the file, as with `iconv -f utf-16 -t utf-8`", path));
  file.clear();
  file.seekg(0);
  return file;
}

LineReader::LineReader(std::string path) : path_(std::move(path)), file_(open_text(path_)) {}

std::optional<std::string_view> LineReader::next() {
  if (!std::getline(file_, line_)) {
    if (file_.bad()) fail_at_line(path_, number_ + 1, "cannot be read");
    return std::nullopt;
  }
  ++number_;
  if (line_.ends_with('\r')) line_.pop_back();
  check_utf8(line_, path_, number_);
  return line_;
}

std::optional<std::string_view> LineReader::next_with_text() {
  auto line = next();
  while (line && line->find_first_not_of(" \t") == line->npos) line = next();
  return line;
}

nlohmann::json parse_object(const LineReader& in, std::string_view line, const std::string& like) {
  return object_of_line(in, like, [&] { return parse_json(line); });
}

nlohmann::ordered_json parse_ordered_object(const LineReader& in, std::string_view line, const std::string& like) {
  return object_of_line(in, like, [&] { return parse_ordered_json(line); });
}

}  // namespace trireme::datasets
