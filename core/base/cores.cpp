#include "core/base/cores.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <thread>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// A number at the beginning of the text; unset where there is none ("max").
std::optional<double> number(const std::string& text) {
  double value = 0;
  return std::istringstream(text) >> value ? std::optional(value) : std::nullopt;
}

std::optional<double> quota_of_v2(const fs::path& group) {
  std::istringstream text(line_of(group / "cpu.max"));  // "150000 100000", or "max 100000"
  double quota = 0, period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

std::optional<double> quota_of_v1(const fs::path& group) {
  const auto quota = number(line_of(group / "cpu.cfs_quota_us"));  // -1: none
  const auto period = number(line_of(group / "cpu.cfs_period_us"));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

/// The least quota of a group and of those above it. In a container, the group's own path may not exist below the
/// mount, which then shows the container's group as its root.
template <class QuotaOf>
void add_quotas(const fs::path& mount, const std::string& group, std::optional<double>& least,
                const QuotaOf& quota_of) {
  for (auto path = fs::path(group).relative_path();; path = path.parent_path()) {
    if (const auto quota = quota_of(mount / path); quota && (!least || *quota < *least)) least = quota;
    if (path.empty()) return;
  }
}

}  // namespace

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)  // "model name	: AMD EPYC 7763"
    if (const auto begin = line.find(": "); line.starts_with("model name") && begin != std::string::npos)
      return line.substr(begin + 2);
  return "";
}

std::string line_of(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::optional<double> cgroup_quota(const std::string& root) {
  const auto top = fs::path(root) / "sys/fs/cgroup";
  std::optional<double> least;
  std::ifstream groups(fs::path(root) / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/user.slice", "4:cpu,cpuacct:/docker/1f"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) {
      add_quotas(top, group, least, quota_of_v2);
      add_quotas(top / "unified", group, least, quota_of_v2);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      add_quotas(top / controllers, group, least, quota_of_v1);
      add_quotas(top / "cpu", group, least, quota_of_v1);
    }
  }
  return least;
}

int usable_cores() { return std::max(1, cores_of_rank(1)); }

int cores_of_rank(int ranks) {
  const auto own = affinity().size(), of_launcher = affinity(getppid()).size();
  return share_of_cores(own > 0 ? own : std::thread::hardware_concurrency(), of_launcher, cgroup_quota("/"), ranks);
}

int share_of_cores(std::size_t own, std::size_t of_launcher, std::optional<double> quota, int ranks) {
  const auto cores = static_cast<double>(own);
  // The ranks that share these cores, if the launcher has spread all of them evenly over its own.
  const auto sharers = own < of_launcher ? std::max(1.0, ranks * cores / static_cast<double>(of_launcher)) : ranks;
  return static_cast<int>(std::min(cores / sharers, quota ? *quota / ranks : cores));
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int first = 0;
    const auto* end = entry.data() + entry.size();
    const auto [at, error] = std::from_chars(entry.data(), end, first);
    int last = first;
    if (error != std::errc() || (at != end && *at == '-' && std::from_chars(at + 1, end, last).ec != std::errc()))
      continue;
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t begin = 0; begin < cpus.size();) {
    auto end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[begin]);
    if (end - begin > 1) text += fmt::format("-{}", cpus[end - 1]);
    begin = end;
  }
  return text;
}

std::vector<int> affinity(int process) {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(process, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

bool set_affinity(const std::vector<int>& cpus, int thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  return sched_setaffinity(thread, sizeof set, &set) == 0;
}

}  // namespace trireme
