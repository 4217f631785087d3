#include "datasets/shard_pattern.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "datasets/folder_entries.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostShards = 1'000'000;

/// What a text names, and how its files end.
struct ShardPattern {
  const std::string& text;
  const std::vector<std::string>& endings;
};

[[noreturn]] void refuse_pattern(const ShardPattern& pattern, const std::string& what) {
  if (is_command(pattern.text))
    throw DataError(fmt::format("{}: {}; write {}COMMAND train-{{0000..0146}}{}", pattern.text, what, kCommandPrefix,
                                pattern.endings.front()));
  throw DataError(fmt::format("{}: {}; write train-{{0000..0146}}{}, train-*{}, or a folder", pattern.text, what,
                              pattern.endings.front(), pattern.endings.front()));
}

/// The alternatives in one pair of braces: "0000..0146" or "a,b".
std::vector<std::string> alternatives(const std::string& braces, const ShardPattern& pattern) {
  const auto dots = braces.find("..");
  if (dots == braces.npos) return text::split(braces, ',');
  const auto from = std::string_view(braces).substr(0, dots), to = std::string_view(braces).substr(dots + 2);
  const auto first = text::integer(from), last = text::integer(to);
  if (!first || !last || *first < 0 || *first > *last || *last - *first >= kMostShards)
    refuse_pattern(pattern, fmt::format("{{{}}} is no range of numbers", braces));
  const auto width = from.starts_with('0') ? std::max(from.size(), to.size()) : 1;
  std::vector<std::string> out;
  for (auto number = *first; number <= *last; ++number) out.push_back(fmt::format("{:0{}}", number, width));
  return out;
}

/// Where the first braces to expand begin. In a command, others are the shell's.
std::size_t find_braces(const std::string& text) {
  auto open = text.find('{');
  while (is_command(text) && open != text.npos) {
    const auto inner = text.substr(open, text.find('}', open) - open);
    const bool is_list = inner.find("..") != inner.npos || inner.find(',') != inner.npos;
    if (is_list && text[open - 1] != '$' && inner.find_first_of(" \t\n") == inner.npos) break;
    open = text.find('{', open + 1);
  }
  return open;
}

void expand_braces(const std::string& text, const ShardPattern& pattern, std::vector<std::string>& out) {
  const auto open = find_braces(text);
  if (open == text.npos) {
    out.push_back(text);
    if (static_cast<std::int64_t>(out.size()) > kMostShards)
      refuse_pattern(pattern, fmt::format("names more than {} files", text::thousands(kMostShards)));
    return;
  }
  const auto close = text.find('}', open);
  if (close == text.npos || text.substr(open + 1, close - open - 1).find('{') != text.npos)
    refuse_pattern(pattern, "each { needs a }, and braces cannot be nested");
  for (const auto& choice : alternatives(text.substr(open + 1, close - open - 1), pattern))
    expand_braces(text.substr(0, open) + choice + text.substr(close + 1), pattern, out);
}

/// The files that match a pattern without braces, in byte order.
std::vector<std::string> matching_files(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> out;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::sort(out.begin(), out.end());
  return out;
}

/// A file with such characters in its name is taken by its name.
bool is_wildcard(const std::string& path) {
  std::error_code error;
  return path.find_first_of("*?[") != path.npos && !fs::exists(path, error);
}

}  // namespace

std::vector<std::string> expand_shards(const std::string& pattern, const std::vector<std::string>& endings) {
  const ShardPattern whole{pattern, endings};
  std::error_code error;
  std::vector<std::string> named;
  if (is_command(pattern) && pattern.find('*') != pattern.npos)
    refuse_pattern(whole, "nobody can list what * matches in a command");
  if (!is_command(pattern) && fs::exists(pattern, error))
    named = {pattern};
  else
    expand_braces(pattern, whole, named);
  std::vector<std::string> out, missing;
  for (const auto& path : named) {
    if (is_command(path)) {
      out.push_back(path);
    } else if (fs::is_directory(path, error)) {
      std::vector<std::string> shards;
      for (const auto& entry : folder_entries(path)) {
        const auto file = fs::path(path) / entry.name;
        if (std::find(endings.begin(), endings.end(), file.extension()) != endings.end() &&
            (entry.regular || !fs::is_directory(file, error)))
          shards.push_back(file.string());
      }
      if (shards.empty())
        refuse_pattern({path, endings}, fmt::format("no *{} in this folder", text::join(endings, " or *")));
      out.insert(out.end(), shards.begin(), shards.end());
    } else if (is_wildcard(path)) {
      const auto shards = matching_files(path);
      if (shards.empty()) refuse_pattern({path, endings}, "no file matches");
      out.insert(out.end(), shards.begin(), shards.end());
    } else {
      (fs::exists(path, error) ? out : missing).push_back(path);
    }
  }
  if (!missing.empty())
    throw DataError(fmt::format(
        "{}: no such {}{}", text::first_few(missing), missing.size() == 1 ? "file" : "files",
        named.size() == 1 ? "" : fmt::format(" ({} of the {} that {} names)", missing.size(), named.size(), pattern)));
  auto sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    refuse_pattern(whole, fmt::format("names {} twice", *twice));
  return out;
}

}  // namespace trireme::datasets
