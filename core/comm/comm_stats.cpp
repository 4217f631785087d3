#include "core/comm/comm_stats.h"

#include <cmath>

namespace trireme::comm {

void CommStats::add(const std::string& axis, const std::string& op, std::uint64_t elements, std::uint64_t bytes,
                    double wire_factor) {
  const std::lock_guard lock(mutex_);
  auto& entry = totals_[{axis, op}];
  entry.calls += 1;
  entry.payload_elements += elements;
  entry.payload_bytes += bytes;
  entry.wire_bytes += static_cast<std::uint64_t>(std::llround(static_cast<double>(bytes) * wire_factor));
}

std::map<std::pair<std::string, std::string>, CommStatsEntry> CommStats::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void CommStats::set_totals(std::map<std::pair<std::string, std::string>, CommStatsEntry> totals) {
  const std::lock_guard lock(mutex_);
  totals_ = std::move(totals);
}

std::uint64_t CommStats::wire_bytes() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [key, entry] : totals_) bytes += entry.wire_bytes;
  return bytes;
}

}  // namespace trireme::comm
