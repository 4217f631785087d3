// Converts TOML text to Tables. The only file that includes toml++.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

// Parts of toml++ that are not used here are switched off to save compile time.
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_UNRELEASED_FEATURES 0
// Few, because destructors call themselves for each level; no option takes a list of lists.
#define TOML_MAX_NESTED_VALUES 16
#include <toml++/toml.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/table.h"

namespace trireme::config {
namespace {

constexpr std::size_t kMostKeyParts = 64;  // a table is made for each, and destroyed by a call within a call

Origin origin_of(const toml::source_region& region, const std::string& source) {
  return {source, static_cast<std::int64_t>(region.begin.line), static_cast<std::int64_t>(region.begin.column)};
}

std::string joined(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

const char* kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or a time";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::boolean:
      return "true or false";
    default:
      return "a value";
  }
}

// A list with elements of one kind: integers, numbers (integers count as numbers) or strings. nullopt: another list.
std::optional<FieldValue> list_of(const toml::array& array) {
  const auto all = [&](auto accepts) {
    return std::all_of(array.begin(), array.end(), [&](const toml::node& node) { return (node.*accepts)(); });
  };
  const auto as_list_of = [&]<class T>(T) {
    std::vector<T> out;
    for (const auto& node : array) out.push_back(*node.value<T>());
    return out;
  };
  if (all(&toml::node::is_integer)) return as_list_of(std::int64_t());
  if (all(&toml::node::is_number)) return as_list_of(double());
  if (all(&toml::node::is_string)) return as_list_of(std::string());
  return std::nullopt;
}

/// Rejects strings with a zero byte, at which C functions would truncate a path or an error message.
std::string text_of(const toml::node& node, const std::string& where, const std::string& key) {
  auto text = *node.value<std::string>();
  if (text.find('\0') != std::string::npos)
    throw ConfigError(fmt::format("{}: {} contains a null character (\\u0000); remove it", where, key));
  return text;
}

FieldValue value_of(const toml::node& node, const std::string& where, const std::string& key) {
  switch (node.type()) {
    case toml::node_type::boolean:
      return *node.value<bool>();
    case toml::node_type::integer:
      return *node.value<std::int64_t>();
    case toml::node_type::floating_point:
      return *node.value<double>();
    case toml::node_type::string:
      return text_of(node, where, key);
    case toml::node_type::array: {
      const auto& array = *node.as_array();
      if (auto list = list_of(array)) return *list;
      const bool tables = array.is_homogeneous(toml::node_type::table);
      throw ConfigError(
          tables ? fmt::format("{}: {} is a list of inline tables; write each as a block below a line [[{}]]", where,
                               key, key)
                 : fmt::format("{}: {} must be a list of one type: numbers or strings", where, key));
    }
    default:
      throw ConfigError(
          fmt::format("{}: {} is {}, which no option accepts; write a number, a string, true, false or a list", where,
                      key, kind_of(node)));
  }
}

/// Whether an array was written as [[section]] blocks, not as a list of inline tables.
bool is_array_of_sections(const toml::array& array) {
  return !array.empty() && std::all_of(array.begin(), array.end(), [](const toml::node& node) {
    const auto* table = node.as_table();
    return table != nullptr && !table->is_inline();
  });
}

Table convert(const toml::table& from, const std::string& path, const std::string& source) {
  Table out;
  out.path = path;
  out.origin = path.empty() ? Origin{source, 0, 0} : origin_of(from.source(), source);
  for (const auto& [key, node] : from) {
    const std::string name{key.str()};
    const Origin origin = origin_of(key.source(), source);
    const std::string full = joined(path, name);
    if (const auto* table = node.as_table()) {
      if (table->is_inline())
        throw ConfigError(fmt::format("{}: {} is an inline table; write its keys below a line [{}] of their own",
                                      origin.text(), full, path.starts_with("plugin") ? full : name));
      out.tables.emplace(name, convert(*table, full, source)).first->second.origin = origin;
    } else if (const auto* array = node.as_array(); array != nullptr && is_array_of_sections(*array)) {
      for (const auto& item : *array) out.arrays[name].push_back(convert(*item.as_table(), full, source));
    } else {
      out.entries.emplace(name, Entry{value_of(node, origin.text(), full), origin});
    }
  }
  return out;
}

/// Line number `line` of the text, from 1.
std::string_view line_of(std::string_view text, std::int64_t line) {
  for (; line > 1 && text.find('\n') != std::string_view::npos; --line) text.remove_prefix(text.find('\n') + 1);
  return text.substr(0, text.find('\n'));
}

bool has_typographic_quotes(std::string_view line) {
  for (const auto* quote : {"\u201c", "\u201d", "\u201e", "\u2018", "\u2019"})
    if (line.find(quote) != std::string_view::npos) return true;
  return false;
}

/// The end of the string that begins at `at`: behind its closing quotes, or where its line or the text ends.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool has_lines = text.substr(at, 3) == std::string(3, quote);
  const std::string close(has_lines ? 3 : 1, quote);
  for (at += close.size(); at < text.size(); ++at) {
    if (text.substr(at).starts_with(close)) {
      at += close.size();  // of four or five quotes, the first ones are of the string
      for (int more = 0; has_lines && more < 2 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    }
    if (text[at] == '\n' && !has_lines) return at;
    if (text[at] == '\\' && quote == '"') ++at;
  }
  return text.size();
}

[[noreturn]] void key_is_too_long(const std::string& where) {
  throw ConfigError(fmt::format("{}: a key of more than {} parts, which no option has", where, kMostKeyParts));
}

/// Checks the lengths of keys such as a.b.c before the parser makes tables of them. @throws ConfigError
void check_keys_are_short(std::string_view text, const std::string& source) {
  std::size_t line = 1, line_begin = 0;
  std::size_t begin = 0, dots = 0;  // of what may be a key
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const auto end = end_of_string(text, i);
      for (; i < end; ++i)
        if (text[i] == '\n') {
          ++line;
          line_begin = i + 1;
        }
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '.' && ++dots == kMostKeyParts) {
      const auto column = text.find_first_not_of(" \t", begin) - line_begin + 1;
      key_is_too_long(Origin{source, static_cast<std::int64_t>(line), static_cast<std::int64_t>(column)}.text());
    }
    ++i;
    if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) {
      dots = 0;
      begin = i;
    }
    if (c == '\n') {
      ++line;
      line_begin = i;
    }
  }
}

/// The parser's message, with the most frequent cause of it.
std::string explained(const toml::parse_error& error, std::string_view source = {}) {
  std::string text(error.description());
  if (text.find("utf-8") != std::string::npos)
    return "it is not UTF-8 text; save it as UTF-8 without a byte order mark";
  if (text.find("TOML_MAX_NESTED_VALUES") != std::string::npos)
    return fmt::format("lists or inline tables nested deeper than {} levels", TOML_MAX_NESTED_VALUES);
  if (has_typographic_quotes(line_of(source, error.source().begin.line)))
    return text + "; a typographic quote is in this line: a string needs plain ones, \"";
  if (text.find("unicode scalar") != std::string::npos || text.find("escape sequence") != std::string::npos)
    return text + "; a backslash begins an escape sequence: write \\\\ for one, or put the text into single quotes";
  if (text.find("could not determine value type") != std::string::npos) return text + "; a string needs quotes";
  if (text.find("control characters") != std::string::npos && text.find("in comments") == std::string::npos)
    return text + "; is the closing quote missing?";
  return text;
}

[[noreturn]] void syntax_error(const toml::parse_error& error, const std::string& source, std::string_view text) {
  throw ConfigError(
      fmt::format("{}: not valid TOML: {}", origin_of(error.source(), source).text(), explained(error, text)));
}

bool is_bare_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(),
                                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

// Parses a TOML value; other text is taken literally unless it begins with a quote or a bracket.
FieldValue override_value(const std::string& text, const std::string& origin, const std::string& key) {
  const bool bracketed = !text.empty() && std::strchr("\"'[{", text[0]) != nullptr;
  if (text.find('\n') != std::string::npos && !bracketed) return text;
  try {
    const auto assignment = fmt::format("v = {}\n", text);
    if (bracketed) check_keys_are_short(assignment, origin);
    const auto parsed = toml::parse(assignment);
    const auto& node = *parsed.get("v");
    if (parsed.size() == 1 && (!(node.is_date() || node.is_time() || node.is_date_time())))
      return value_of(node, origin, key);
  } catch (const toml::parse_error& error) {
    if (bracketed) throw ConfigError(fmt::format("{}: not a TOML value: {}", origin, explained(error)));
    const auto digits = std::string_view(text).substr(!text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0);
    if (digits.size() >= 19 && digits.find_first_not_of("0123456789") == std::string_view::npos)
      throw ConfigError(fmt::format("{}: out of range: more than 64 bits", origin));
  }
  return text;
}

std::vector<std::string> split_key(const std::string& path, const std::string& origin) {
  auto parts = text::split(path, '.');
  if (parts.size() > kMostKeyParts) key_is_too_long(origin);
  const bool good = parts.size() >= 2 && std::all_of(parts.begin(), parts.end(), is_bare_key);
  if (!good)
    throw ConfigError(fmt::format("{}: write --set SECTION.KEY=VALUE, for example --set train.epochs=5", origin));
  return parts;
}

}  // namespace

Table parse_text(std::string_view text, const std::string& source) {
  check_keys_are_short(text, source);
  try {
    return convert(toml::parse(text, source), "", source);
  } catch (const toml::parse_error& error) {
    syntax_error(error, source, text);
  }
}

std::string read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw ConfigError(fmt::format("{}: is a folder; name the TOML file itself", path));
  constexpr std::size_t kMost = 16 << 20;  // a device may have no end
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 1 << 16> block{};
  while (file && text.size() <= kMost) {
    file.read(block.data(), block.size());
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (text.size() > kMost)
    throw ConfigError(fmt::format("{}: is longer than 16 MiB, so it is not a configuration", path));
  if (!file.eof()) throw ConfigError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  return text;
}

Table parse_file(const std::string& path) { return parse_text(read_text(path), path); }

void apply_override(Table& root, const std::string& assignment) {
  constexpr std::size_t kMostShown = 400;  // bytes
  const std::string origin = assignment.size() <= kMostShown
                                 ? fmt::format("--set {}", assignment)
                                 : fmt::format("--set {}...", text::printable(assignment.substr(0, kMostShown)));
  const auto equals = assignment.find('=');
  const auto parts = split_key(assignment.substr(0, equals), origin);
  if (equals == std::string::npos)
    throw ConfigError(fmt::format("{}: no value; write --set {}=VALUE", origin, assignment));

  Table* section = &root;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    const std::string path = joined(section->path, parts[i]);
    if (section->entries.count(parts[i]) != 0)
      throw ConfigError(fmt::format("{}: {} is an option, not a section", origin, path));
    if (section->arrays.count(parts[i]) != 0)
      throw ConfigError(fmt::format("{}: [[{}]] can be written several times; change it in the file", origin, path));
    auto [found, made] = section->tables.try_emplace(parts[i]);
    if (made) {
      found->second.path = path;
      found->second.origin = {origin, 0, 0};
    }
    section = &found->second;
  }
  const std::string& key = parts.back();
  const std::string full = joined(section->path, key);
  if (section->tables.count(key) != 0)
    throw ConfigError(fmt::format("{}: {} is a section; write --set {}.KEY=VALUE", origin, full, full));
  section->entries.insert_or_assign(
      key, Entry{override_value(assignment.substr(equals + 1), origin, full), Origin{origin, 0, 0}});
}

}  // namespace trireme::config
