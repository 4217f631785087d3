// Placement: which slice of a full tensor this rank owns, by name (design idea 2). The one description that
// initialisation, gradient norm, checkpoints, printing and tests ask; nothing computes a second truth.
//
// Two cuts, each optional, applied in this order:
//   1. tensor cut: along `dim`, the rank holds `ranges` of the full tensor, concatenated in order. One range for a
//      plain shard (uneven sizes allowed); several for a fused parameter such as [Q, K, V], cut part by part.
//   2. flat range: of the row-major elements of what 1 leaves, the rank holds [flat.begin, flat.end) (ZeRO).
// `sharded_axes` names the mesh axes along which ranks hold different slices; along all others, but `stage_axis`, they
// hold copies.
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
  friend bool operator==(const Range&, const Range&) = default;
};

/// Part `index` of `size` things cut in `parts`: sizes differ by at most one, the larger ones first.
Range split(std::int64_t size, int parts, int index);

struct Placement {
  std::string name;                 ///< global name: "vit.encoder.layer.0.output.dense.weight"
  std::vector<std::int64_t> shape;  ///< of the full tensor
  std::int64_t dim = 0;             ///< of the tensor cut; ignored while ranges is empty
  std::vector<Range> ranges;        ///< empty: no tensor cut
  std::optional<Range> flat;        ///< unset: no flat range
  std::vector<std::string> sharded_axes;
  /// The mesh axis along which not every rank has the tensor at all (a pipeline's stages); "": there is none.
  std::string stage_axis{};
  bool copy = false;  ///< another rank along stage_axis has the same, and speaks for it: a weight of two stages

  /// The whole tensor on every rank.
  static Placement whole(std::string name, std::vector<std::int64_t> shape);

  [[nodiscard]] std::int64_t full_numel() const;
  /// Shape after the tensor cut.
  [[nodiscard]] std::vector<std::int64_t> cut_shape() const;
  /// Shape of what the rank holds: cut_shape(), or one dim of flat.size().
  [[nodiscard]] std::vector<std::int64_t> local_shape() const;
  [[nodiscard]] std::int64_t local_numel() const;
  [[nodiscard]] bool is_whole() const { return ranges.empty() && !flat; }
  /// Whether what ranks along the axis hold are no copies of each other.
  [[nodiscard]] bool differs_along(const std::string& axis) const;

  /// The rank's slice of `full`, contiguous. @pre full.sizes() == shape
  [[nodiscard]] at::Tensor slice(const at::Tensor& full) const;
  /// Writes the rank's slice into its place in `full`.
  void paste(at::Tensor& full, const at::Tensor& local) const;

  /// A run of elements that lie side by side both in the full tensor and in the slice.
  struct Run {
    std::int64_t full_begin, local_begin, size;
  };
  /// The slice as runs, in local order. What a file reader or a draw by element index walks.
  [[nodiscard]] std::vector<Run> runs() const;
};

/// A rank's slice of a full tensor.
struct Slice {
  Placement placement;  ///< name and full shape too
  at::Tensor value;     ///< of placement.local_shape()
};

}  // namespace trireme::shard
