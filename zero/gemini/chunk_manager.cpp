#include "zero/gemini/chunk_manager.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/host_values.h"

namespace trireme::zero {
namespace {

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024 * 1024); }

std::int64_t part_of(double ratio, std::int64_t bytes) {
  return static_cast<std::int64_t>(ratio * static_cast<double>(bytes));
}

/// The number of blocks entered before the next one that needs `chunk`; the pass is taken as cyclic.
std::size_t distance(const BlockOrder& order, const FlatWeights& weights, std::size_t chunk) {
  const auto& blocks = order.blocks();
  std::size_t ahead = 0;
  for (; ahead < blocks.size(); ++ahead)
    if (weights.buckets_of(*blocks[(order.entered() + ahead) % blocks.size()]).count(chunk) > 0) break;
  return ahead;
}

}  // namespace

ChunkManager::ChunkManager(const comm::Group& everyone, const comm::World& world, ChunkManagerOptions options,
                           const Log& log)
    : everyone_(everyone),
      meter_(world.device(), world.ranks_per_device()),
      options_(std::move(options)),
      log_(log),
      capacity_(comm::reduce_value(everyone_, meter_.capacity(), comm::ReduceOp::min)) {
  if (capacity_ == 0)
    throw ConfigError(
        options_.section +
        ".placement_policy: \"auto\" needs to know the device's memory: on CPU ranks, set run.memory_mb to what a "
        "rank's tensors may take (in C++: memory::count()), or choose \"static\"");
  if (!options_.stats_path.empty())
    stats_ = MemoryStats::read(options_.stats_path, options_.run, options_.chunks, options_.section);
  read_ = stats_.has_value();
}

std::vector<Residency> ChunkManager::careful(const std::vector<std::int64_t>& parts) const {
  return careful_residency(parts, part_of(1 - options_.warmup_ratio, capacity_));
}

/// The residency in training, from what is known so far.
std::vector<Residency> ChunkManager::planned() const {
  return stats_ ? plan_residency(*stats_, parts(), part_of(options_.steady_ratio, capacity_), options_.margin_ratio)
                : careful(parts());
}

std::string ChunkManager::describe() const {
  return fmt::format("placement auto: {:.1f} MiB per rank, {}", mib(capacity_),
                     stats_ ? fmt::format("with the statistics in {}: {}", options_.stats_path, current_state())
                            : std::string("to be filled after the first step is measured"));
}

std::vector<std::string> ChunkManager::advice() const {
  std::vector<std::string> out;
  if (!keeps_gathered_chunks() && options_.warmup_ratio < 1)
    out.push_back("raise " + options_.section + ".warmup_non_model_data_ratio");
  if (keeps_gathered_chunks()) out.push_back("lower " + options_.section + ".steady_cuda_cap_ratio");
  if (read_)
    out.push_back(fmt::format("remove {}, whose statistics may be too low, so that memory is measured again",
                              options_.stats_path));
  return out;
}

std::int64_t ChunkManager::resident() const {
  std::int64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < weights_->buckets().size(); ++chunk) {
    const auto& residency = weights_->residency(chunk);
    if (!residency.offload_part) bytes += weights_->part_bytes(chunk);
    if (!residency.offload_master) bytes += stats_->state.at(chunk);
  }
  return bytes;
}

std::int64_t ChunkManager::room() const {
  std::int64_t other = 0;
  if (period_ < stats_->periods.size())
    other = stats_->periods[period_].other;
  else
    for (const auto& period : stats_->periods) other = std::max(other, period.other);
  return part_of(options_.steady_ratio, capacity_) - other - resident();
}

void ChunkManager::enter(const BlockOrder& order, const std::set<std::size_t>& needed) {
  period_ = order.entered() - 1;
  phase_ = Phase::pass;
  std::int64_t missing = 0, all = 0;
  for (const auto chunk : needed) {
    all += weights_->buffer_bytes(chunk);
    if (!weights_->is_materialized(chunk)) missing += weights_->buffer_bytes(chunk);
  }
  if (!keeps_gathered_chunks()) {
    if (seen_.periods.size() <= period_) seen_.periods.resize(period_ + 1);
    seen_.periods[period_].gathered = all;
    for (const auto chunk : needed) first_use_.emplace(chunk, static_cast<std::int64_t>(period_));
    return;
  }
  std::vector<std::pair<std::size_t, std::size_t>> others;  // (distance, chunk)
  for (std::size_t chunk = 0; chunk < weights_->buckets().size(); ++chunk)
    if (weights_->is_materialized(chunk) && needed.count(chunk) == 0)
      others.emplace_back(distance(order, *weights_, chunk), chunk);
  std::sort(others.begin(), others.end());
  const auto most = room() - missing;
  for (; !others.empty() && weights_->gathered_bytes() > most; others.pop_back())
    weights_->release(others.back().second);
}

bool ChunkManager::has_room(std::size_t chunk) const {
  return keeps_gathered_chunks() && weights_->gathered_bytes() + weights_->buffer_bytes(chunk) <= room();
}

void ChunkManager::before_change() {
  if (keeps_gathered_chunks() || phase_ == Phase::none) return;
  auto& most = phase_ == Phase::pass ? seen_.periods[period_].other : seen_.update;
  most = std::max(most, meter_.peak() - resident() - weights_->gathered_bytes());
}

void ChunkManager::after_change() {
  if (!keeps_gathered_chunks()) meter_.reset();
}

std::vector<std::int64_t> ChunkManager::parts() const {
  std::vector<std::int64_t> bytes;
  for (std::size_t chunk = 0; chunk < weights_->buckets().size(); ++chunk) bytes.push_back(weights_->part_bytes(chunk));
  return bytes;
}

void ChunkManager::step_ended(std::vector<std::int64_t> state) {
  if (keeps_gathered_chunks()) return;
  before_change();
  seen_.state = std::move(state);
  for (std::size_t chunk = 0; chunk < weights_->buckets().size(); ++chunk) {
    const auto used = first_use_.find(chunk);
    seen_.first_use.push_back(used == first_use_.end() ? static_cast<std::int64_t>(seen_.periods.size())
                                                       : used->second);
  }
  agree();
  if (!options_.stats_path.empty()) write_stats();
  log_.note("placement auto, measured: {}", current_state());
}

std::vector<std::size_t> ChunkManager::apply_residencies(bool training) {
  const auto residencies = training ? planned() : careful(parts());
  std::vector<std::size_t> moved;
  for (std::size_t chunk = 0; chunk < residencies.size(); ++chunk) {
    if (residencies[chunk] == weights_->residency(chunk)) continue;
    weights_->move_to(chunk, residencies[chunk]);
    moved.push_back(chunk);
  }
  return moved;
}

/// Describes the residency that stats_ leads to.
std::string ChunkManager::current_state() const {
  const auto residencies = planned();
  auto left = part_of(options_.steady_ratio, capacity_);
  std::size_t slices = 0, states = 0;
  for (std::size_t chunk = 0; chunk < residencies.size(); ++chunk) {
    if (!residencies[chunk].offload_part) ++slices, left -= weights_->part_bytes(chunk);
    if (!residencies[chunk].offload_master) ++states, left -= stats_->state.at(chunk);
  }
  std::int64_t other = 0;
  for (const auto& period : stats_->periods) other = std::max(other, period.other);
  return fmt::format(
      "weight slices of {1} of {0} chunks and optimizer state of {2} are on the device; at least {3:.1f} MiB are free "
      "for gathered chunks",
      residencies.size(), slices, states, mib(std::max<std::int64_t>(0, left - other)));
}

/// Rank 0 writes the file. Collective. @throws CheckpointError, on every rank, when it cannot
void ChunkManager::write_stats() {
  const auto write = [&] { stats_->write(options_.stats_path, options_.run); };
  const auto problem = log_.rank() == 0 ? checkpoint::problem_of(write, "the statistics cannot be written") : "";
  if (const auto found = comm::broadcast_text(everyone_, problem); !found.empty()) throw CheckpointError(found);
}

/// Measurements depend on a rank's samples, but decisions must be the same on all ranks, so the maximum is used.
void ChunkManager::agree() {
  std::vector<std::int64_t> figures{seen_.update};
  for (const auto& period : seen_.periods) figures.push_back(period.other);
  figures.insert(figures.end(), seen_.state.begin(), seen_.state.end());
  figures = comm::reduce_values(everyone_, figures, comm::ReduceOp::max);
  auto next = figures.begin();
  seen_.update = *next++;
  for (auto& period : seen_.periods) period.other = *next++;
  for (auto& bytes : seen_.state) bytes = *next++;
  stats_ = std::move(seen_);
}

}  // namespace trireme::zero
