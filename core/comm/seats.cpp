#include "core/comm/seats.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace trireme::comm {

Seat Seat::parse(const std::string& text) {
  const auto end = text.find('\n');
  TRIREME_CHECK(end != std::string::npos, "\"{}\" is no seat", text);
  return {text.substr(0, end), text.substr(end + 1)};
}

std::string Seating::text() const { return fmt::format("{}\n{}", static_cast<int>(way), shared); }

Seating Seating::parse(const std::string& text) {
  const auto end = text.find('\n');
  TRIREME_CHECK(end == 1, "\"{}\" is no seating", text);
  return {static_cast<Way>(text[0] - '0'), text.substr(end + 1)};
}

std::string host_identity() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return fmt::format("{} {}", static_cast<const char*>(name), boot);
}

Seating choose_way(const std::vector<Seat>& seats) {
  std::set<std::pair<std::string, std::string>> devices;
  for (const auto& seat : seats)
    if (!seat.device.empty()) devices.emplace(seat.host, seat.device);
  const auto with_cuda =
      std::count_if(seats.begin(), seats.end(), [](const Seat& seat) { return !seat.device.empty(); });
  if (with_cuda == 0) return {};
  if (static_cast<std::size_t>(with_cuda) != seats.size())
    throw ConfigError(
        fmt::format("{} of {} ranks would use CUDA and the others the CPU; set device to cpu, or start ranks "
                    "only where there are GPUs",
                    with_cuda, seats.size()));
  if (devices.size() == seats.size()) return {Way::nccl, ""};
  return {Way::staged,
          fmt::format("{} ranks share {} GPU{}", seats.size(), devices.size(), devices.size() == 1 ? "" : "s")};
}

}  // namespace trireme::comm
