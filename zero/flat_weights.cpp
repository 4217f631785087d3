#include "zero/flat_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/nn/block.h"

namespace trireme::zero {

namespace {

void free_memory(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
  storage->set_nbytes(0);
}

void give_memory(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace

FlatWeights::FlatWeights(nn::Model& model, std::vector<Bucket> buckets, std::vector<Residency> residencies,
                         const FlatWeightsOptions& options)
    : buckets_(std::move(buckets)),
      residencies_(std::move(residencies)),
      options_(options),
      materialized_(buckets_.size(), true),
      gathers_(buckets_.size()),
      converted_(buckets_.size()) {
  TRIREME_CHECK(residencies_.size() == buckets_.size(), "got {} residencies for {} buckets", residencies_.size(),
                buckets_.size());
  const at::NoGradGuard no_grad;
  make_buffers();
  fill_masters(nn::declarations(model));
  install(model);
  map_blocks(model);
}

void FlatWeights::make_buffers() {
  const auto on_device = at::TensorOptions().dtype(options_.working).device(options_.device);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& layout = buckets_[b].layout;
    const auto mine = layout.part(shards(b).rank());
    flat_.push_back(residencies_[b].replicated ? at::zeros({layout.total()}, on_device)
                                               : at::empty({layout.total()}, on_device));
    if (residencies_[b].replicated) {
      parts_.push_back(flat_[b].narrow(0, mine.begin, mine.size()));
    } else {
      parts_.push_back(make_part(b));
      free_memory(flat_[b]);  // freed at once, because the full model may not fit on this rank
      materialized_[b] = false;
    }
    masters_.push_back(make_master(b));
  }
}

at::Tensor FlatWeights::on_host(std::int64_t size, at::ScalarType dtype) const {
  return memory::host_zeros(size, dtype, options_.device, options_.pin);
}

at::Tensor FlatWeights::make_part(std::size_t bucket) const {
  const auto size = buckets_[bucket].layout.part_size();
  if (residencies_[bucket].offload_part) return on_host(size, options_.working);
  return at::zeros({size}, at::TensorOptions().dtype(options_.working).device(options_.device));
}

at::Tensor FlatWeights::make_master(std::size_t bucket) const {
  if (!has_master(bucket)) return parts_[bucket];
  const auto& residency = residencies_[bucket];
  if (options_.master == options_.working && residency.offload_master == residency.offload_part) return parts_[bucket];
  const auto size = buckets_[bucket].layout.part_size();
  if (residency.offload_master) return on_host(size, options_.master);
  return at::zeros({size}, at::TensorOptions().dtype(options_.master).device(options_.device));
}

void FlatWeights::move_to(std::size_t bucket, const Residency& residency) {
  TRIREME_CHECK(!residency.replicated && !residencies_[bucket].replicated,
                "bucket {} is not partitioned, so it cannot be moved", bucket);
  const at::NoGradGuard no_grad;
  release(bucket);
  const auto part = parts_[bucket], master = masters_[bucket];
  const bool moves = residency.offload_part != residencies_[bucket].offload_part;
  residencies_[bucket] = residency;
  converted_[bucket].reset();
  if (moves) parts_[bucket] = make_part(bucket).copy_(part);
  masters_[bucket] = make_master(bucket);
  if (!masters_[bucket].is_same(master)) masters_[bucket].copy_(master);
  for (std::size_t i = 0; i < buckets_[bucket].parameters.size(); ++i)
    slices_[first_[bucket] + i].value = cut(masters_[bucket], bucket, i);
}

void FlatWeights::install(nn::Model& model) {
  std::unordered_map<std::string, at::Tensor> memory;
  const auto parameters = nn::declarations(model);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!materialized_[b]) give_memory(flat_[b]);  // a view can only be made of a tensor that has memory
    for (std::size_t i = 0; i < buckets_[b].parameters.size(); ++i) {
      const auto& parameter = parameters[buckets_[b].parameters[i]];
      const auto range = buckets_[b].layout.item(i);
      // variable_data() gives the view a separate version counter, so that an all-gather does not count as a
      // modification of a tensor that autograd has saved.
      memory[parameter.name] =
          flat_[b].narrow(0, range.begin, range.size()).view(parameter.placement.local_shape()).variable_data();
    }
    if (!materialized_[b]) free_memory(flat_[b]);
  }
  nn::install(
      model,
      [&](const nn::Declaration& parameter) {
        const auto found = memory.find(parameter.name);
        return found != memory.end() ? found->second : parameter.value.detach().to(options_.device);
      },
      options_.working, options_.device);
  leaves_ = nn::declarations(model);
}

void FlatWeights::fill_masters(const std::vector<nn::Declaration>& parameters) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& bucket = buckets_[b];
    first_.push_back(slices_.size());
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto& parameter = parameters[bucket.parameters[i]];
      auto placement = placement_of(parameter, bucket, i);
      auto slice = cut(masters_[b], b, i);
      if (parameter.init) {
        shard::draw_into(*parameter.init, options_.seed, placement, slice);
      } else {
        const auto whole = parameter.value.detach().to(options_.device, options_.master).contiguous();
        bucket.ranks->everyone.broadcast(whole, 0);
        slice.copy_(placement.slice(whole));
      }
      slices_.push_back({parameter.name, std::move(slice), std::move(placement)});
    }
  }
}

at::Tensor FlatWeights::cut(const at::Tensor& part, std::size_t bucket, std::size_t item) const {
  const auto& layout = buckets_[bucket].layout;
  const int rank = shards(bucket).rank();
  return part.narrow(0, layout.offset_in_part(item, rank), layout.owned(item, rank).size());
}

void FlatWeights::map_blocks(nn::Model& model) {
  std::unordered_map<const void*, std::size_t> bucket_of;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    for (const auto index : buckets_[b].parameters) bucket_of[leaves_[index].value.unsafeGetTensorImpl()] = b;
  for (const auto& block : model.blocks()) {
    auto& needed = of_block_[block.get()];
    for (const auto& parameter : block->parameters())
      if (const auto found = bucket_of.find(parameter.unsafeGetTensorImpl()); found != bucket_of.end())
        needed.insert(found->second);
  }
}

void FlatWeights::gather(std::size_t bucket) {
  auto mine = parts_[bucket];
  if (residencies_[bucket].offload_part) {
    const auto range = buckets_[bucket].layout.part(shards(bucket).rank());
    mine = flat_[bucket].narrow(0, range.begin, range.size());
    uploads_.begin(bucket, parts_[bucket], mine, [&] {
      if (shards(bucket).size() > 1) gathers_[bucket] = shards(bucket).all_gather_into_async(flat_[bucket], mine);
    });
    return;
  }
  if (shards(bucket).size() == 1 && mine.is_alias_of(flat_[bucket])) return;
  gathers_[bucket] = shards(bucket).all_gather_into_async(flat_[bucket], mine);
}

void FlatWeights::wait(std::size_t bucket) {
  std::exchange(gathers_[bucket], {}).wait();
  uploads_.wait(bucket);
}

/// A master in host memory is converted there, into pinned memory of its own: LibTorch would convert it into memory
/// that is not pinned, and the host would wait for the copy. When the next step converts it again the copy is complete,
/// because the gradients of that step were computed after it.
at::Tensor FlatWeights::converted(std::size_t bucket) {
  const auto& residency = residencies_[bucket];
  if (!residency.offload_master || residency.offload_part || options_.master == options_.working)
    return masters_[bucket];
  auto& converted = converted_[bucket];
  if (!converted.defined()) converted = on_host(masters_[bucket].numel(), options_.working);
  return converted.copy_(masters_[bucket]);
}

void FlatWeights::copy_from_master(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  if (!parts_[bucket].is_same(masters_[bucket])) parts_[bucket].copy_(converted(bucket), /*non_blocking=*/true);
  if (residencies_[bucket].replicated)
    gather(bucket);
  else
    release(bucket);  // its gathered values are out of date
}

void FlatWeights::copy_all_from_masters() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) copy_from_master(b);
}

void FlatWeights::take_memory(std::size_t bucket) {
  give_memory(flat_[bucket]);
  materialized_[bucket] = true;
  gathered_ += static_cast<std::int64_t>(flat_[bucket].nbytes());
  peak_gathered_ = std::max(peak_gathered_, gathered_);
}

void FlatWeights::all_gather(std::size_t bucket) {
  if (materialized_[bucket]) return;
  const at::NoGradGuard no_grad;
  take_memory(bucket);
  gather(bucket);
}

bool FlatWeights::zeros(std::size_t bucket) {
  if (materialized_[bucket]) return false;
  const at::NoGradGuard no_grad;
  take_memory(bucket);
  flat_[bucket].zero_();
  return true;
}

void FlatWeights::release(std::size_t bucket) {
  if (residencies_[bucket].replicated || !materialized_[bucket]) return;
  wait(bucket);
  free_memory(flat_[bucket]);
  materialized_[bucket] = false;
  gathered_ -= static_cast<std::int64_t>(flat_[bucket].nbytes());
}

void FlatWeights::release_all() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) release(b);
}

void FlatWeights::wait() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) wait(b);
}

std::vector<std::string> FlatWeights::describe(std::string_view name) const {
  std::vector<std::string> lines;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& [parameters, layout, trained, gradient_group, ranks] = buckets_[b];
    lines.push_back(fmt::format("{} {}{}: {} elements of {} parameters, {} ... {}; {} per rank, {} of padding in all",
                                name, b, trained ? "" : " (frozen)", layout.payload(), parameters.size(),
                                leaves_[parameters.front()].name, leaves_[parameters.back()].name, layout.part_size(),
                                layout.total() - layout.payload()));
  }
  return lines;
}

std::int64_t FlatWeights::buffer_bytes(std::size_t bucket) const {
  return buckets_[bucket].layout.total() * static_cast<std::int64_t>(c10::elementSize(options_.working));
}

std::int64_t FlatWeights::part_bytes(std::size_t bucket) const { return buffer_bytes(bucket) / shards(bucket).size(); }

std::int64_t FlatWeights::wide_master_bytes(std::size_t bucket) const {
  if (options_.master == options_.working || !has_master(bucket)) return 0;
  return buckets_[bucket].layout.part_size() * static_cast<std::int64_t>(c10::elementSize(options_.master));
}

std::int64_t FlatWeights::weight_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    bytes += (residencies_[b].replicated ? flat_[b] : parts_[b]).nbytes();
  return static_cast<std::int64_t>(bytes);
}

std::int64_t FlatWeights::master_bytes(std::size_t bucket) const {
  return masters_[bucket].is_same(parts_[bucket]) ? 0 : static_cast<std::int64_t>(masters_[bucket].nbytes());
}

}  // namespace trireme::zero
