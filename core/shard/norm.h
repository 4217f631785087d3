// The global gradient norm (contract C4): every element counts once, with the same result in every parallel layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/shard/placement.h"

namespace trireme::shard {

struct PlacedTensor {
  const Placement* placement;
  at::Tensor tensor;  ///< this rank's slice; undefined for an unused parameter
};

/// The norm over all tensors of all ranks, of power 2 or infinity: a 0-dim tensor on the device; float64 for float64
/// inputs and when ranks are reduced, else float32. `axes`: the mesh axes along which ranks may hold different slices;
/// it must be the same on every rank, whatever each rank holds. A replicated parameter counts once. A value that is not
/// finite makes the norm not finite on every rank, also one in a copy. No host synchronisation; one all-reduce over the
/// axes.
at::Tensor global_norm(const std::vector<PlacedTensor>& tensors, comm::Mesh& mesh, const std::vector<std::string>& axes,
                       double power = 2);

/// Adds the rows of `values`, float64 [tensors, K] with one row for each placement, in place over the ranks that hold
/// other slices of that tensor along `axes`, so that each element of a tensor counts once. One all-reduce; every
/// rank along the axes must have the same tensors, so that a stage axis cannot be among them.
void sum_over_slices(const at::Tensor& values, const std::vector<const Placement*>& placements, comm::Mesh& mesh,
                     const std::vector<std::string>& axes);

/// min(1, max_norm / (norm + 1e-6)), on the device.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm);

}  // namespace trireme::shard
