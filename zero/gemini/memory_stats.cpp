#include "zero/gemini/memory_stats.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme::zero {

[[noreturn]] static void refuse(const std::string& section, const std::string& path, const std::string& why) {
  throw ConfigError(fmt::format(
      "{}.memstats: \"{}\" is not a file of memory statistics ({}); remove it, or name another", section, path, why));
}

/// @throws ConfigError unless both describe the same run
static void check_same(const std::string& section, const std::string& path, const RunKeys& current,
                       const RunKeys& stored) {
  auto all = stored;
  all.insert(current.begin(), current.end());
  std::vector<std::string> differ;
  const auto value = [](const RunKeys& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == keys.end() ? std::string("unset") : found->second;
  };
  for (const auto& [key, any] : all)
    if (value(current, key) != value(stored, key))
      differ.push_back(fmt::format("{} = {} (in the file: {})", key, value(current, key), value(stored, key)));
  if (!differ.empty())
    throw ConfigError(
        fmt::format("{}.memstats: \"{}\" was measured in another run: {}; remove the file, or name another", section,
                    path, text::first_few(differ)));
}

std::optional<MemoryStats> MemoryStats::read(const std::string& path, const RunKeys& run, std::size_t chunks,
                                             const std::string& section) {
  if (!std::filesystem::exists(path)) return {};
  MemoryStats stats;
  try {
    const auto file = parse_json(read_file(path));
    check_same(section, path, run, file.at("run").get<RunKeys>());
    for (const auto& period : file.at("periods"))
      stats.periods.push_back({period.at("other").get<std::int64_t>(), period.at("gathered").get<std::int64_t>()});
    stats.update = file.at("update").get<std::int64_t>();
    stats.state = file.at("state").get<std::vector<std::int64_t>>();
    stats.first_use = file.at("first_use").get<std::vector<std::int64_t>>();
  } catch (const nlohmann::json::exception& error) {
    refuse(section, path, json_problem(error));
  }
  const auto sizes = [](const std::vector<std::int64_t>& list) {
    return std::all_of(list.begin(), list.end(), [](auto bytes) { return bytes >= 0; });
  };
  if (stats.periods.empty() || stats.state.size() != chunks || stats.first_use.size() != chunks)
    refuse(section, path, fmt::format("it must have periods, and values for {} chunks", chunks));
  if (!sizes(stats.state) || !sizes(stats.first_use)) refuse(section, path, "a value is negative");
  return stats;
}

void MemoryStats::write(const std::string& path, const RunKeys& run) const {
  auto list = nlohmann::json::array();
  for (const auto& period : periods) list.push_back({{"other", period.other}, {"gathered", period.gathered}});
  const nlohmann::json file{
      {"run", run}, {"periods", list}, {"update", update}, {"state", state}, {"first_use", first_use}};
  write_file(path, json_text(file, 1) + "\n");
}

std::vector<Residency> plan_residency(const MemoryStats& stats, const std::vector<std::int64_t>& parts,
                                      std::int64_t room, double margin) {
  std::vector<Residency> residencies(parts.size(), Residency{.replicated = false, .offload_master = true});
  auto busiest = stats.update;
  for (const auto& period : stats.periods) busiest = std::max(busiest, period.other + period.gathered);
  auto left = room - busiest - std::accumulate(parts.begin(), parts.end(), std::int64_t{0});

  std::vector<std::size_t> order(parts.size());  // the chunks that a pass needs last come first
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return stats.first_use.at(a) > stats.first_use.at(b); });
  for (const auto chunk : order) {
    if (left >= 0) break;
    residencies[chunk].offload_part = true;
    left += parts[chunk];
  }

  auto for_state = static_cast<std::int64_t>(margin * static_cast<double>(std::max<std::int64_t>(left, 0)));
  for (std::size_t chunk = 0; chunk < parts.size(); ++chunk)
    if (!residencies[chunk].offload_part && stats.state.at(chunk) <= for_state) {
      residencies[chunk].offload_master = false;
      for_state -= stats.state[chunk];
    }
  return residencies;
}

std::vector<Residency> careful_residency(const std::vector<std::int64_t>& parts, std::int64_t room) {
  std::vector<Residency> residencies;
  for (const auto part : parts) {
    room -= part;
    residencies.push_back({.replicated = false, .offload_master = true, .offload_part = room < 0});
  }
  return residencies;
}

}  // namespace trireme::zero
