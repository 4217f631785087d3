#include "zero/flat_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "core/nn/block.h"

namespace trireme::zero {

FlatWeights::FlatWeights(nn::Model& model, std::vector<Bucket> buckets, const comm::Group& shards,
                         const comm::Group& everyone, const FlatWeightsOptions& options)
    : buckets_(std::move(buckets)), shards_(shards), options_(options), arriving_(buckets_.size()) {
  const at::NoGradGuard no_grad;
  const auto on_device = at::TensorOptions().dtype(options_.working).device(options_.device);
  const bool copies = options_.master != options_.working || options_.offload;
  const auto beside = at::TensorOptions()
                          .dtype(options_.master)
                          .device(options_.offload ? c10::Device(at::kCPU) : options_.device)
                          .pinned_memory(options_.offload && options_.device.is_cuda());
  for (const auto& bucket : buckets_) {
    const auto part = bucket.layout.part(shards_.rank());
    flat_.push_back(at::zeros({bucket.layout.total()}, on_device));
    masters_.push_back(copies ? at::zeros({part.size()}, beside) : flat_.back().narrow(0, part.begin, part.size()));
  }
  fill_masters(nn::declarations(model), everyone);

  std::unordered_map<std::string, at::Tensor> memory;
  const auto parameters = nn::declarations(model);
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      const auto& parameter = parameters[buckets_[b].parameters[i]];
      const auto place = buckets_[b].layout.item(i);
      // variable_data: a version counter of its own, so that a gather is no change of a tensor that a graph has saved.
      memory[parameter.name] = flat_[b].narrow(0, place.begin, place.size()).view(parameter.shape).variable_data();
    }
  nn::install(
      model,
      [&](const nn::Declaration& parameter) {
        const auto found = memory.find(parameter.name);
        return found != memory.end() ? found->second : parameter.value.detach().to(options_.device);
      },
      options_.working, options_.device);
  for (auto& buffer : model.buffers()) everyone.broadcast(buffer, 0);
  leaves_ = nn::declarations(model);
  map_blocks(model);
}

void FlatWeights::fill_masters(const std::vector<nn::Declaration>& parameters, const comm::Group& everyone) {
  const int rank = shards_.rank();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& bucket = buckets_[b];
    first_.push_back(slices_.size());
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto& parameter = parameters[bucket.parameters[i]];
      auto placement = placement_of(parameter, bucket, i, rank, shards_.axis());
      auto slice = cut(masters_[b], b, i);
      if (parameter.init) {
        slice.copy_(shard::draw(*parameter.init, options_.seed, placement, options_.master, masters_[b].device()));
      } else {
        const auto whole = parameter.value.detach().to(options_.device, options_.master).contiguous();
        everyone.broadcast(whole, 0);
        slice.copy_(placement.slice(whole));
      }
      slices_.push_back({parameter.name, std::move(slice), std::move(placement)});
    }
  }
}

at::Tensor FlatWeights::cut(const at::Tensor& part, std::size_t bucket, std::size_t item) const {
  const auto& layout = buckets_[bucket].layout;
  const int rank = shards_.rank();
  return part.narrow(0, layout.place_in_part(item, rank), layout.owned(item, rank).size());
}

void FlatWeights::map_blocks(nn::Model& model) {
  std::unordered_map<const void*, std::size_t> bucket_of;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    for (const auto index : buckets_[b].parameters) bucket_of[leaves_[index].value.unsafeGetTensorImpl()] = b;
  for (const auto& block : model.blocks())
    for (const auto& parameter : block->parameters())
      if (const auto found = bucket_of.find(parameter.unsafeGetTensorImpl()); found != bucket_of.end())
        of_block_[block.get()].insert(found->second);
}

void FlatWeights::publish(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  const auto part = buckets_[bucket].layout.part(shards_.rank());
  auto mine = flat_[bucket].narrow(0, part.begin, part.size());
  if (!mine.is_alias_of(masters_[bucket])) mine.copy_(masters_[bucket], /*non_blocking=*/true);
  if (shards_.size() == 1) return;
  arriving_[bucket] = shards_.all_gather_into_async(flat_[bucket], mine);
  pending_ = true;
}

void FlatWeights::publish_all() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) publish(b);
}

void FlatWeights::wait() {
  if (!pending_) return;
  for (auto& work : arriving_) std::exchange(work, {}).wait();
  pending_ = false;
}

void FlatWeights::wait(const nn::Block& block) {
  if (!pending_) return;
  for (const auto bucket : of_block_[&block]) std::exchange(arriving_[bucket], {}).wait();
}

std::vector<std::string> FlatWeights::describe() const {
  std::vector<std::string> lines;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& [parameters, layout, trained] = buckets_[b];
    lines.push_back(fmt::format("bucket {}{}: {} elements of {} parameters, {} ... {}; {} a rank with {} of padding", b,
                                trained ? "" : " (frozen)", layout.payload(), parameters.size(),
                                leaves_[parameters.front()].name, leaves_[parameters.back()].name, layout.part_size(),
                                layout.total() - layout.payload()));
  }
  return lines;
}

std::int64_t FlatWeights::weight_bytes() const {
  std::size_t bytes = 0;
  for (const auto& flat : flat_) bytes += flat.nbytes();
  return static_cast<std::int64_t>(bytes);
}

std::int64_t FlatWeights::master_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < flat_.size(); ++b)
    if (!masters_[b].is_alias_of(flat_[b])) bytes += masters_[b].nbytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace trireme::zero
