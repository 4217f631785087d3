#include "core/checkpoint/sharded_tensors.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::checkpoint {
namespace {

/// A run of elements of the full tensor that a stored slice holds.
struct SourceRun {
  std::int64_t begin, size;  ///< in the full tensor
  std::int64_t local_begin;  ///< in the slice
  const StoredSlice* slice;
};

/// The runs of all slices, by where they begin.
std::vector<SourceRun> source_runs(const ShardedTensor& tensor) {
  std::vector<SourceRun> out;
  for (const auto& slice : tensor.slices)
    for (const auto& run : slice.placement.runs())
      if (run.size > 0) out.push_back({run.full_begin, run.size, run.local_begin, &slice});
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return out;
}

}  // namespace

ShardedTensors::ShardedTensors(std::string folder, const std::string& group, ShardedTensorMap tensors)
    : folder_(std::move(folder)),
      path_((std::filesystem::path(folder_) / group).string()),
      tensors_(std::move(tensors)) {}

std::vector<std::string> ShardedTensors::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

const ShardedTensor& ShardedTensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw CheckpointError(
        fmt::format("{}: there is no tensor \"{}\"{}", path_, name, text::did_you_mean(name, names())));
  return found->second;
}

TensorInfo ShardedTensors::info(const std::string& name) const {
  const auto& tensor = find(name);
  auto shape = tensor.shape;
  if (tensor.stored_transposed) std::reverse(shape.begin(), shape.end());
  return {tensor.dtype, std::move(shape)};
}

at::Tensor ShardedTensors::read_slice(const std::string& name, const shard::Placement& placement) const {
  const auto& tensor = find(name);
  if (!tensor.stored_transposed) return assemble(tensor, placement);
  // The caller wants the layout of other files; the slices have that of the memory.
  return transpose_of(placement, [&](const shard::Placement& in_memory) { return assemble(tensor, in_memory); });
}

at::Tensor ShardedTensors::read_transposed(const std::string& name, const shard::Placement& placement) const {
  const auto& tensor = find(name);
  return tensor.stored_transposed ? assemble(tensor, placement) : WeightsFile::read_transposed(name, placement);
}

const std::byte* ShardedTensors::bytes_of(const ShardedTensor& tensor, const StoredSlice& slice) const {
  const auto& placement = slice.placement;
  const std::lock_guard lock(opening_);
  auto& file = files_[slice.file];
  if (file == nullptr) file = std::make_unique<SafeTensors>((std::filesystem::path(folder_) / slice.file).string());
  const auto stored = file->info(placement.name);
  if (stored.dtype != tensor.dtype || stored.shape != placement.local_shape())
    throw CheckpointError(fmt::format("{}: tensor \"{}\" is {} [{}], but {} [{}] in the manifest", file->path(),
                                      placement.name, safetensors_name(stored.dtype), fmt::join(stored.shape, ", "),
                                      safetensors_name(tensor.dtype), fmt::join(placement.local_shape(), ", ")));
  return file->bytes(placement.name).data();
}

/// The slice of a tensor according to `wanted`, which has the shape of the tensor in memory.
at::Tensor ShardedTensors::assemble(const ShardedTensor& tensor, const shard::Placement& wanted) const {
  auto out = at::empty(wanted.local_shape(), tensor.dtype);
  auto* target = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::size_t width = out.element_size();
  const auto sources = source_runs(tensor);
  std::map<const StoredSlice*, const std::byte*> opened;
  for (const auto& run : wanted.runs()) {
    // The last source that begins at or before the run, then those that follow it.
    auto source = std::upper_bound(sources.begin(), sources.end(), run.full_begin,
                                   [](std::int64_t at, const SourceRun& r) { return at < r.begin; });
    std::int64_t done = 0;
    for (source = source == sources.begin() ? source : source - 1; done < run.size; ++source) {
      const auto at = run.full_begin + done;
      if (source == sources.end() || at < source->begin || at >= source->begin + source->size)
        throw CheckpointError(fmt::format("{}: no slice of the tensor \"{}\" holds its element {}", path_,
                                          tensor.slices.empty() ? wanted.name : tensor.slices[0].placement.name, at));
      const auto size = std::min(run.size - done, source->begin + source->size - at);
      auto& bytes = opened[source->slice];
      if (bytes == nullptr) bytes = bytes_of(tensor, *source->slice);
      std::memcpy(target + static_cast<std::size_t>(run.local_begin + done) * width,
                  bytes + static_cast<std::size_t>(source->local_begin + at - source->begin) * width,
                  static_cast<std::size_t>(size) * width);
      done += size;
    }
  }
  bytes_read_ += out.nbytes();
  return out;
}

}  // namespace trireme::checkpoint
