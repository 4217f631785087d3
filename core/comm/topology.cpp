#include "core/comm/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/cores.h"
#include "core/base/environment.h"

namespace trireme::comm {
namespace {

/// @throws ConfigError, which names two ranks on different hosts.
void check_on_one_host(const std::vector<RankLocation>& locations) {
  const auto name_of = [](const RankLocation& location) { return location.host.substr(0, location.host.find(' ')); };
  const auto& first = locations.front();
  for (std::size_t rank = 1; rank < locations.size(); ++rank)
    if (locations[rank].host != first.host)
      throw several_hosts_need_mpi(
          fmt::format("rank 0 is on host {} and rank {} on host {}", name_of(first), rank, name_of(locations[rank])),
          locations.size());
}

}  // namespace

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
  return fmt::format("{} {}", host_name(), line_of("/proc/sys/kernel/random/boot_id"));
}

ConfigError several_hosts_need_mpi(const std::string& where, std::size_t ranks) {
  return ConfigError(fmt::format(
      "{}: without MPI, CPU ranks and ranks that share a GPU must be on one host; start them by mpirun or srun (Open "
      "MPI), as in `mpirun -n {} --host a:{},b:{} PROGRAM`, or give each rank a GPU of its own (NCCL)",
      where, ranks, (ranks + 1) / 2, ranks / 2));
}

Topology choose_backend(const std::vector<RankLocation>& locations, bool over_mpi) {
  std::map<std::pair<std::string, std::string>, int> devices;  // number of ranks per (host, device)
  for (const auto& location : locations)
    if (!location.device.empty()) ++devices[{location.host, location.device}];
  const auto with_cuda = std::count_if(locations.begin(), locations.end(),
                                       [](const RankLocation& location) { return !location.device.empty(); });
  if (with_cuda != 0 && static_cast<std::size_t>(with_cuda) != locations.size())
    throw ConfigError(
        fmt::format("{} of {} ranks would use CUDA and the others the CPU; set device to cpu, or start ranks "
                    "only where there are GPUs",
                    with_cuda, locations.size()));
  if (devices.size() == locations.size()) return {Backend::nccl};
  if (!over_mpi) check_on_one_host(locations);
  if (with_cuda == 0) return {};
  const auto most = std::max_element(devices.begin(), devices.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return {Backend::staged, most->second,
          fmt::format("{} ranks share {} GPU{}", locations.size(), devices.size(), devices.size() == 1 ? "" : "s")};
}

}  // namespace trireme::comm
