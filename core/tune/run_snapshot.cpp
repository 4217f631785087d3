#include "core/tune/run_snapshot.h"

#include <map>
#include <string>

#include "core/base/error.h"
#include "core/base/memory.h"

namespace trireme::tune {
namespace {

std::vector<shard::Slice> copies_of(std::vector<shard::Slice> slices) {
  const memory::OfHost not_the_run;
  for (auto& slice : slices) slice.value = slice.value.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  return slices;
}

/// The slices by their names.
std::map<std::string, const shard::Slice*> by_name(const std::vector<shard::Slice>& slices) {
  std::map<std::string, const shard::Slice*> out;
  for (const auto& slice : slices) out[slice.placement.name] = &slice;
  return out;
}

bool alike(const std::vector<shard::Slice>& a, const std::vector<shard::Slice>& b) {
  const auto of_b = by_name(b);
  if (a.size() != b.size()) return false;
  for (const auto& slice : a) {
    const auto other = of_b.find(slice.placement.name);
    if (other == of_b.end() || other->second->placement.cuts != slice.placement.cuts ||
        other->second->placement.flat != slice.placement.flat || other->second->value.sizes() != slice.value.sizes())
      return false;
  }
  return true;
}

void copy_by_name(const std::vector<shard::Slice>& from, const std::vector<shard::Slice>& to) {
  const auto values = by_name(from);
  for (const auto& slice : to) slice.value.detach().copy_(values.at(slice.placement.name)->value);
}

}  // namespace

RunSnapshot::RunSnapshot(Boosted& run)
    : weights_(copies_of(run.model->state_dict())), optimizer_(copies_of(run.optimizer->state())) {
  if (const auto& scaler = run.optimizer->scaler(); scaler.enabled()) scaler_ = scaler.state();
}

bool RunSnapshot::fits(Boosted& twin) const {
  return alike(weights_, twin.model->state_dict()) && alike(optimizer_, twin.optimizer->state());
}

void RunSnapshot::write_to(Boosted& run, bool scaler) const {
  run.optimizer->zero_grad();
  copy_by_name(weights_, run.model->state_dict());
  copy_by_name(optimizer_, run.optimizer->state());
  run.model->weights_changed();
  if (scaler && scaler_.defined()) run.optimizer->scaler().set_state(scaler_);
}

}  // namespace trireme::tune
