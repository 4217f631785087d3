#include "apps/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

#include "apps/config_file.h"
#include "core/base/text.h"
#include "core/comm/axes.h"

namespace trireme::apps {
namespace {

bool is_axis(const std::string& key) {
  const auto& kinds = comm::axis_kinds();
  return std::any_of(kinds.begin(), kinds.end(), [&](const auto& kind) { return !key.empty() && kind.key == key; });
}

/// The short keys of a layout.
std::vector<std::string> short_keys() {
  std::vector<std::string> keys;
  for (const auto& kind : comm::axis_kinds())
    if (!kind.key.empty()) keys.push_back(kind.key);
  keys.insert(keys.end(), {"zero", "schedule", "sp_mode", "plugin", "device"});
  return keys;
}

std::string trimmed(const std::string& text) {
  const auto space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  const auto begin = std::find_if_not(text.begin(), text.end(), space);
  return {begin, std::find_if_not(text.rbegin(), std::reverse_iterator(begin), space).base()};
}

/// Splits at `separator`, except inside a list or a string.
std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> out{""};
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == ']')) depth += c == '[' ? 1 : -1;
    if (c == separator && depth == 0 && !quoted)
      out.emplace_back();
    else
      out.back() += c;
  }
  for (auto& part : out) part = trimmed(part);
  return out;
}

[[noreturn]] void refuse(const std::string& layout, const std::string& what) {
  throw ConfigError(fmt::format("--layouts: \"{}\": {}", layout, what));
}

/// A layout only distributes the work over ranks. A key that changes the work itself would make all layouts differ.
void check_shares(const std::string& layout, const std::string& key) {
  static const std::set<std::string> of_all{"train.precision", "train.global_batch", "train.epochs", "train.max_steps",
                                            "run.dir",         "run.resume"};
  static const std::set<std::string> of_ranks{"data.workers", "data.prefetch", "data.cache_mb"};
  const bool work = key.starts_with("model.") || key.starts_with("schedule.") ||
                    (key.starts_with("data.") && !of_ranks.contains(key)) || of_all.contains(key);
  if (work)
    refuse(layout, fmt::format("{} would change the numbers and does not belong in a layout; {}", key,
                               key == "train.precision" ? "use --precision, which applies to all layouts"
                                                        : "use --set, which applies to all layouts, or remove it"));
}

std::int64_t number(const std::string& layout, const std::string& key, const std::string& value, std::int64_t least) {
  char* end = nullptr;
  const auto n = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0' || n < least || n > 4096)
    refuse(layout, fmt::format("{} must be a number from {} to 4096", key, least));
  return n;
}

}  // namespace

void blame(const Layout& layout, const std::vector<std::string>& set, const ConfigError& error) {
  std::string what = error.what();
  const std::string precision = "--set train.precision=\"";  // verify sets it for all layouts
  if (what.starts_with(precision)) {
    what = what.substr(precision.size());
    throw ConfigError("--precision " + what.erase(what.find('"'), 1));
  }
  for (const auto& assignment : set)
    if (what.starts_with("--set " + assignment)) throw error;
  if (what.starts_with("--set ")) what.erase(0, 6);
  throw ConfigError(fmt::format("--layouts: \"{}\": {}", layout.text, what));
}

Layout parse_layout(const std::string& text) {
  Layout layout;
  layout.text = text;
  std::set<std::string> seen;
  for (const auto& word : parts(text, ',')) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) refuse(text, fmt::format("\"{}\" is not KEY=VALUE", word));
    const auto key = trimmed(word.substr(0, equals)), value = trimmed(word.substr(equals + 1));
    if (!seen.insert(key).second)
      refuse(text, fmt::format("{} is given twice; semicolons separate layouts: \"dp=1; dp=2\"", key));
    const bool sized = is_axis(key) || key == "zero";
    if (sized && value.find('=') != std::string::npos)
      refuse(text, fmt::format("{} = \"{}\" is not a number; a comma separates the keys of a layout, a semicolon "
                               "layouts: \"dp=1; dp=2,tp=2\"",
                               key, value));
    if (sized)
      (key == "zero" ? layout.zero : layout.sizes[key]) = number(text, key, value, key == "zero" ? 0 : 1);
    else if (key == "schedule")
      layout.schedule = value;
    else if (key == "sp_mode")
      layout.sp_mode = value;
    else if (key == "plugin")
      layout.plugin = value;
    else if (key == "device")
      layout.set.push_back("run.device=" + config::to_toml(value));
    else if (key.find('.') != std::string::npos) {
      check_shares(text, key);
      layout.set.push_back(fmt::format("{}={}", key, value));
    } else
      refuse(text, fmt::format("no key \"{}\" (known: {}, or SECTION.KEY as --set takes it){}", key,
                               text::join(short_keys()), text::did_you_mean(key, short_keys())));
  }
  if (!layout.plugin.empty() && layout.plugin != "hybrid_parallel" &&
      (layout.ranks() > layout.size("dp") || layout.zero > 0))
    refuse(text, fmt::format("pp, sp, tp and zero are options of hybrid_parallel, not of \"{}\"; remove plugin",
                             layout.plugin));
  return layout;
}

std::vector<Layout> parse_layouts(const std::string& text) {
  std::vector<Layout> layouts;
  for (const auto& part : parts(text, ';'))
    if (!part.empty()) layouts.push_back(parse_layout(part));
  if (layouts.empty()) throw ConfigError("--layouts: names none; separate them by semicolons: \"dp=1; dp=2; tp=2\"");
  return layouts;
}

config::Table table_with_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout) {
  auto root = read_config(path, set);
  root.tables.erase("parallel");
  root.tables.erase("plugin");
  const auto apply = [&root](const std::string& assignment) { config::apply_override(root, assignment); };
  const bool hybrid = layout.plugin.empty() || layout.plugin == "hybrid_parallel";
  apply("parallel.plugin=" + config::to_toml(hybrid ? "hybrid_parallel" : layout.plugin));
  apply(fmt::format("parallel.dp={}", layout.size("dp")));
  for (const auto& [key, size] : layout.sizes)
    if (key != "dp" && size > 1) apply(fmt::format("parallel.{}={}", key, size));
  if (layout.zero > 0) apply(fmt::format("parallel.zero={}", layout.zero));
  if (!layout.schedule.empty()) apply("parallel.schedule=" + config::to_toml(layout.schedule));
  if (!layout.sp_mode.empty()) apply("parallel.sp_mode=" + config::to_toml(layout.sp_mode));
  for (const auto& assignment : layout.set) apply(assignment);
  return root;
}

std::int64_t threads_of_layout(const std::string& path, const std::vector<std::string>& set, const Layout& layout) {
  try {
    return threads_of(table_with_layout(path, set, layout));
  } catch (const ConfigError& error) {
    blame(layout, set, error);
  }
}

}  // namespace trireme::apps
