#include "core/train/report/operator_profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/comm/flight/recorder.h"

namespace trireme::train {

OperatorProfile::OperatorProfile()
    : watch_(c10::kCPU, [this](const plan::SeenOperator& seen) {
        const int block = block_of(seen);
        if (seen.work.kind == plan::Kind::view) return;
        const std::string name(seen.name.substr(std::min(seen.name.rfind(':') + 1, seen.name.size())));
        spans_.push_back({name, seen.work, std::chrono::duration<double>(seen.begin - begun_).count(), seen.seconds(),
                          block, seen.is_backward});
      }) {}

int OperatorProfile::block_of(const plan::SeenOperator& seen) {
  if (!seen.is_backward) {
    block_ = comm::flight::block();
    if (std::exchange(forward_block_, block_) != block_ && seen.sequence) blocks_from_[*seen.sequence] = block_;
  } else if (seen.sequence) {  // else the gradient is that of the node before
    const auto after = blocks_from_.upper_bound(*seen.sequence);
    block_ = after == blocks_from_.begin() ? -1 : std::prev(after)->second;
  }
  return block_;
}

nlohmann::json OperatorProfile::blocks(double steps) const {
  struct Sum {
    double forward = 0, backward = 0, bytes = 0, flops = 0;
    std::map<std::string, double> kinds{};
  };
  std::map<int, Sum> sums;
  for (const auto& span : spans_) {
    auto& sum = sums[span.block];
    (span.is_backward ? sum.backward : sum.forward) += span.seconds / steps;
    sum.bytes += span.work.bytes / steps;
    sum.flops += span.work.flops / steps;
    sum.kinds[plan::name_of(span.work.kind)] += span.seconds / steps;
  }
  auto out = nlohmann::json::array();
  for (const auto& [block, of] : sums)
    out.push_back({{"block", block},
                   {"forward", of.forward},
                   {"backward", of.backward},
                   {"bytes", of.bytes},
                   {"flops", of.flops},
                   {"kinds", of.kinds}});
  return out;
}

nlohmann::json OperatorProfile::table(double steps) const {
  struct Sum {
    plan::Kind kind{};
    double calls = 0, seconds = 0, bytes = 0, flops = 0;
  };
  std::map<std::string, Sum> sums;
  for (const auto& [name, work, begin, seconds, block, is_backward] : spans_) {
    auto& sum = sums[name];
    sum.kind = work.kind;
    sum.calls += 1;
    sum.seconds += seconds;
    sum.bytes += work.bytes;
    sum.flops += work.flops;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  auto out = nlohmann::json::array();
  for (const auto& [name, of] : rows)
    out.push_back({{"name", name},
                   {"kind", plan::name_of(of.kind)},
                   {"calls", of.calls / steps},
                   {"seconds", of.seconds / steps},
                   {"bytes", of.bytes / steps},
                   {"flops", of.flops / steps}});
  return out;
}

nlohmann::json OperatorProfile::spans() const {
  auto out = nlohmann::json::array();
  for (const auto& [name, work, begin, seconds, block, is_backward] : spans_)
    out.push_back(
        {{"name", name},
         {"cat", plan::name_of(work.kind)},
         {"ts", 1e6 * begin},
         {"dur", 1e6 * seconds},
         {"args",
          {{"bytes", work.bytes}, {"flops", work.flops}, {"dtype", c10::toString(work.dtype)}, {"block", block}}}});
  return out;
}

}  // namespace trireme::train
