#include "core/comm/topology.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::comm {

RankLocation RankLocation::parse(const std::string& text) {
  const auto end = text.find('\n');
  TRIREME_CHECK(end != std::string::npos, "\"{}\" is not a rank location", text);
  return {text.substr(0, end), text.substr(end + 1)};
}

std::string Topology::text() const {
  return fmt::format("{}\n{}\n{}", static_cast<int>(backend), ranks_per_device, shared);
}

Topology Topology::parse(const std::string& text) {
  const auto end = text.find('\n', 2);
  TRIREME_CHECK(text.find('\n') == 1 && end != std::string::npos, "\"{}\" is not a topology", text);
  return {static_cast<Backend>(text[0] - '0'), std::stoi(text.substr(2, end - 2)), text.substr(end + 1)};
}

std::string host_identity() {
  if (const auto given = environment("TRIREME_HOST_IDENTITY"); !given.empty()) return given;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return fmt::format("{} {}", static_cast<const char*>(name), boot);
}

Topology choose_backend(const std::vector<RankLocation>& locations) {
  std::map<std::pair<std::string, std::string>, int> devices;  // number of ranks per (host, device)
  for (const auto& location : locations)
    if (!location.device.empty()) ++devices[{location.host, location.device}];
  const auto with_cuda = std::count_if(locations.begin(), locations.end(),
                                       [](const RankLocation& location) { return !location.device.empty(); });
  if (with_cuda == 0) return {};
  if (static_cast<std::size_t>(with_cuda) != locations.size())
    throw ConfigError(
        fmt::format("{} of {} ranks would use CUDA and the others the CPU; set device to cpu, or start ranks "
                    "only where there are GPUs",
                    with_cuda, locations.size()));
  if (devices.size() == locations.size()) return {Backend::nccl};
  const auto most = std::max_element(devices.begin(), devices.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return {Backend::staged, most->second,
          fmt::format("{} ranks share {} GPU{}", locations.size(), devices.size(), devices.size() == 1 ? "" : "s")};
}

}  // namespace trireme::comm
