// Placement: which slice of a full tensor this rank owns, by name. It is the only description of that: initialisation,
// gradient norm, checkpoints, printing and tests all use it.
//
// Two optional steps, applied in this order:
//   1. tensor shard: the rank holds the product of `cuts`. Each is along a dim and a mesh axis of its own: experts that
//      expert-parallel ranks divide by dim 0, and tensor-parallel ranks by their outputs.
//   2. flat range: of the row-major elements that remain after 1, the rank holds [flat.begin, flat.end) (ZeRO).
// Ranks hold different slices along the axes of the cuts, `flat_axes` and `stage_axis`, and copies along all others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::shard {

/// Half-open [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend auto operator<=>(const Range&, const Range&) = default;
};

/// A dim of which a rank holds `ranges`, concatenated in order: one for a plain shard (uneven sizes are allowed), and
/// several for a fused parameter such as [Q, K, V], which is sharded part by part.
struct Cut {
  std::int64_t dim = 0;
  std::vector<Range> ranges;
  std::string axis{};  ///< the mesh axis along which the other ranks hold the rest; "" in a file
  [[nodiscard]] std::int64_t size() const;
  friend auto operator<=>(const Cut&, const Cut&) = default;
};

/// Part `index` of `size` elements split into `parts`: sizes differ by at most one, the larger ones first.
Range split(std::int64_t size, int parts, int index);

/// Of a tensor that files hold as one for each index of dim 0.
inline constexpr std::int64_t kMostParts = 1 << 20;

struct Placement {
  std::string name;                      ///< global name: "vit.encoder.layer.0.output.dense.weight"
  std::vector<std::int64_t> shape;       ///< of the full tensor
  std::vector<Cut> cuts{};               ///< by ascending dims, each once; empty: no tensor shard
  std::optional<Range> flat{};           ///< unset: no flat range
  std::vector<std::string> flat_axes{};  ///< the mesh axes along which ranks hold the other flat ranges
  /// The mesh axis along which some ranks lack the tensor entirely (pipeline stages); "" if there is none.
  std::string stage_axis{};
  bool copy = false;  ///< another stage owns this tensor and this rank holds a copy: a weight that two stages share
  /// The copies may differ, as those of buffers that are not synchronised: the first rank's is the one to save.
  bool first_copy_counts = false;
  /// Exported models and other libraries' files hold the transpose of the full tensor, which has two dims: the layout
  /// of its model's other implementations. The slices in a checkpoint have the layout of the memory. Only the readers
  /// and writers of files transpose (WeightsFile::read, SliceSource); `shape` and `cuts` are those of the tensor in
  /// memory.
  bool stored_transposed = false;
  /// The same files hold a tensor for each index of dim 0, such as an expert's, with this name, in which the index is
  /// in place of the '*'; "": they hold one tensor. Otherwise as stored_transposed, of which a tensor has one at most.
  std::string stored_unstacked{};

  /// A placement with the whole tensor on every rank.
  static Placement whole(std::string name, std::vector<std::int64_t> shape);

  /// Adds a cut. @pre none is along this dim or axis yet, and there is no flat range
  Placement& cut(std::int64_t dim, std::vector<Range> ranges, std::string axis = "");
  /// The cut along the dim; null: there is none.
  [[nodiscard]] const Cut* cut_along(std::int64_t dim) const;

  [[nodiscard]] std::int64_t full_numel() const;
  /// The shape of the full tensor in a file that holds it as one.
  [[nodiscard]] std::vector<std::int64_t> stored_shape() const;
  /// Its name in exported models, or those of its parts, by index.
  [[nodiscard]] std::vector<std::string> stored_names() const;
  /// The placement of the same slice in the tensor of which this one is part `index` of `parts` equal ones, one after
  /// the other along dim 0.
  [[nodiscard]] Placement in_whole(std::int64_t index, std::int64_t parts) const;
  /// The shape after the tensor shard.
  [[nodiscard]] std::vector<std::int64_t> cut_shape() const;
  /// The shape of the rank's slice: cut_shape(), or one dim of flat.size().
  [[nodiscard]] std::vector<std::int64_t> local_shape() const;
  [[nodiscard]] std::int64_t local_numel() const;
  [[nodiscard]] bool is_whole() const { return cuts.empty() && !flat; }
  /// Whether the ranks along the axis hold different slices rather than copies.
  [[nodiscard]] bool differs_along(const std::string& axis) const;

  /// Returns the rank's slice of `full`, contiguous. @pre full.sizes() == shape
  [[nodiscard]] at::Tensor slice(const at::Tensor& full) const;
  /// Writes the rank's slice to its position in `full`.
  void paste(at::Tensor& full, const at::Tensor& local) const;

  /// A run of elements that are contiguous both in the full tensor and in the slice.
  struct Run {
    std::int64_t full_begin, local_begin, size;
  };
  /// The slice as runs, in local order, for file readers and for draws by element index.
  [[nodiscard]] std::vector<Run> runs() const;
};

/// A rank's slice of a full tensor.
struct Slice {
  Placement placement;  ///< includes the name and the full shape
  at::Tensor value;     ///< of shape placement.local_shape()
};

/// The slice as exported models hold it: itself, or those parts of a tensor with stored_unstacked of which the rank has
/// elements. Their values are views of the slice's.
std::vector<Slice> stored_slices(const Slice& slice);
/// All slices as exported models hold them.
std::vector<Slice> stored_slices(const std::vector<Slice>& slices);

}  // namespace trireme::shard
