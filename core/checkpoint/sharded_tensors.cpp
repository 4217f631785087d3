#include "core/checkpoint/sharded_tensors.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/files/files.h"
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

/// Elements of a tensor that are contiguous in a stored slice and in the slice that a reader wants.
struct Piece {
  const StoredSlice* slice;
  std::int64_t stored_begin, wanted_begin, size;  ///< in elements, in either slice
};

}  // namespace

/// Calls `use` for the pieces of the slice that `wanted` describes, in its order.
template <class Use>
void ShardedTensors::for_each_piece(const ShardedTensor& tensor, const shard::Placement& wanted, const Use& use) const {
  const auto sources = source_runs(tensor);
  for (const auto& run : wanted.runs()) {
    // The last source that begins at or before the run, then those that follow it.
    auto source = std::upper_bound(sources.begin(), sources.end(), run.full_begin,
                                   [](std::int64_t at, const SourceRun& r) { return at < r.begin; });
    std::int64_t done = 0;
    for (source = source == sources.begin() ? source : source - 1; done < run.size; ++source) {
      const auto at = run.full_begin + done;
      if (source == sources.end() || at < source->begin || at >= source->begin + source->size)
        fail_without(tensor, wanted.name, at);
      const auto size = std::min(run.size - done, source->begin + source->size - at);
      use(Piece{source->slice, source->local_begin + at - source->begin, run.local_begin + done, size});
      done += size;
    }
  }
}

void ShardedTensors::fail_without(const ShardedTensor& tensor, const std::string& name, std::int64_t element) const {
  if (!elsewhere_.empty())
    throw MissingPart(
        fmt::format("{}: lacks {}; the hosts did not share a file system when it was saved: copy these files into this "
                    "folder, or resume in the same layout on the same hosts",
                    folder_, elsewhere_));
  throw CheckpointError(fmt::format("{}: no slice of the tensor \"{}\" holds its element {}", path_,
                                    tensor.slices.empty() ? name : tensor.slices[0].placement.name, element));
}

ShardedTensors::ShardedTensors(std::string folder, const std::string& group, const Manifest& manifest)
    : folder_(std::move(folder)),
      path_(path_in(folder_, group)),
      elsewhere_(missing_parts(folder_, manifest)),
      tensors_(manifest.tensors.at(group)) {
  for (auto& [name, tensor] : tensors_) {
    if (!manifest.host_of.empty()) {
      std::erase_if(tensor.slices, [&](const auto& slice) { return is_elsewhere(folder_, manifest, slice.file); });
      tensor.slices = distinct_slices(tensor);
    }
    for (const auto& slice : tensor.slices) digests_[slice.file] = manifest.files.at(slice.file);
    if (tensor.stored_unstacked.empty()) continue;
    auto whole = shard::Placement::whole(name, tensor.shape);
    whole.stored_unstacked = tensor.stored_unstacked;
    std::int64_t part = 0;
    for (auto& of_part : whole.stored_names()) {
      if (tensors_.contains(of_part) || parts_.contains(of_part))
        throw CheckpointError(fmt::format("{}: two tensors have the name \"{}\" in files", path_, of_part));
      parts_[std::move(of_part)] = {&tensor, part++};
    }
  }
}

std::vector<std::string> ShardedTensors::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_)
    if (tensor.stored_unstacked.empty()) out.push_back(name);
  for (const auto& [name, found] : parts_) out.push_back(name);
  std::sort(out.begin(), out.end());
  return out;
}

ShardedTensors::Found ShardedTensors::find(const std::string& name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return {&found->second, std::nullopt};
  if (const auto found = parts_.find(name); found != parts_.end()) return found->second;
  throw CheckpointError(fmt::format("{}: there is no tensor \"{}\"{}", path_, name, text::did_you_mean(name, names())));
}

TensorInfo ShardedTensors::info(const std::string& name) const {
  const auto [tensor, part] = find(name);
  auto shape = tensor->shape;
  if (tensor->stored_transposed) std::reverse(shape.begin(), shape.end());
  if (part) shape.erase(shape.begin());
  return {tensor->dtype, std::move(shape)};
}

at::Tensor ShardedTensors::read_slice(const std::string& name, const shard::Placement& placement) const {
  const auto found = find(name);
  const auto& tensor = *found.tensor;
  if (!tensor.stored_transposed) return assemble(tensor, found.in_tensor(placement)).view(placement.local_shape());
  // The caller wants the layout of other files; the slices have that of the memory.
  return transpose_of(placement, [&](const shard::Placement& in_memory) { return assemble(tensor, in_memory); });
}

at::Tensor ShardedTensors::read_transposed(const std::string& name, const shard::Placement& placement) const {
  const auto& tensor = *find(name).tensor;
  return tensor.stored_transposed ? assemble(tensor, placement) : WeightsFile::read_transposed(name, placement);
}

const SafeTensors& ShardedTensors::file_with(const ShardedTensor& tensor, const StoredSlice& slice) const {
  const auto& placement = slice.placement;
  const std::lock_guard lock(opening_);
  auto& file = files_[slice.file];
  if (file == nullptr) file = std::make_unique<SafeTensors>(path_in(folder_, slice.file));
  const auto stored = file->info(placement.name);
  if (stored.dtype != tensor.dtype || stored.shape != placement.local_shape())
    throw CheckpointError(fmt::format("{}: tensor \"{}\" is {} [{}], but {} [{}] in the manifest", file->path(),
                                      placement.name, safetensors_name(stored.dtype), fmt::join(stored.shape, ", "),
                                      safetensors_name(tensor.dtype), fmt::join(placement.local_shape(), ", ")));
  return *file;
}

/// The slice of a tensor according to `wanted`, which has the shape of the tensor in memory.
at::Tensor ShardedTensors::assemble(const ShardedTensor& tensor, const shard::Placement& wanted) const {
  auto out = at::empty(wanted.local_shape(), tensor.dtype);
  auto* target = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::size_t width = out.element_size();
  std::map<const StoredSlice*, const std::byte*> opened;
  for_each_piece(tensor, wanted, [&](const Piece& piece) {
    auto& bytes = opened[piece.slice];
    if (bytes == nullptr) bytes = file_with(tensor, *piece.slice).bytes(piece.slice->placement.name).data();
    std::memcpy(target + static_cast<std::size_t>(piece.wanted_begin) * width,
                bytes + static_cast<std::size_t>(piece.stored_begin) * width,
                static_cast<std::size_t>(piece.size) * width);
  });
  bytes_read_ += out.nbytes();
  return out;
}

void ShardedTensors::verify(const std::string& name, const shard::Placement& placement) const {
  const auto found = find(name);
  const auto& tensor = *found.tensor;
  // Where only one of the two is transposed, the elements that are needed lie in all of the tensor.
  const bool fits =
      placement.stored_transposed == tensor.stored_transposed && (found.part || placement.shape == tensor.shape);
  const auto wanted = fits ? found.in_tensor(placement) : shard::Placement::whole(name, tensor.shape);
  const std::uint64_t width = c10::elementSize(tensor.dtype);
  struct Opened {
    FileBlocks* blocks = nullptr;
    std::uint64_t begin = 0;  ///< of the slice in the file
  };
  std::map<const StoredSlice*, Opened> opened;
  for_each_piece(tensor, wanted, [&](const Piece& piece) {
    auto& [blocks, begin] = opened[piece.slice];
    if (blocks == nullptr) {
      const auto& file = piece.slice->file;
      blocks = &blocks_.try_emplace(file, path_in(folder_, file), digests_.at(file)).first->second;
      blocks->verify(0, 1);  // of the header, before it is parsed
      const auto& tensors = file_with(tensor, *piece.slice);
      begin = tensors.begin_of(piece.slice->placement.name);
      blocks->verify(0, tensors.data_begin());
    }
    const auto first = begin + static_cast<std::uint64_t>(piece.stored_begin) * width;
    blocks->verify(first, first + static_cast<std::uint64_t>(piece.size) * width);
  });
  for (const auto& [slice, file] : opened) file.blocks->close();
}

std::uint64_t ShardedTensors::bytes_verified() const {
  std::uint64_t bytes = 0;
  for (const auto& [file, blocks] : blocks_) bytes += blocks.bytes_read();
  return bytes;
}

}  // namespace trireme::checkpoint
