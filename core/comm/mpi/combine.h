// combine: the arithmetic of reductions, on the host, in one pass over all ranks' contributions.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm::mpi {

/// output[i] = op over r of sources[r][i], taken in the order r = 0, 1, ..., so that the bits depend neither on who
/// computes nor on how a tensor is cut. `output` may be one of the sources. float16 and bfloat16 accumulate in float
/// and round once. Integers wrap; their average truncates towards zero. Of bool, sum and max are "or", product and
/// min "and". min and max hand a NaN on.
/// @throws CommError for an op or a type that is none of these.
void combine(c10::ScalarType type, c10d::ReduceOp::RedOpType op, void* output, std::span<const void* const> sources,
             std::size_t count);

/// @throws CommError as combine would: asked before anything is sent.
void check_combine(c10::ScalarType type, c10d::ReduceOp::RedOpType op);

}  // namespace trireme::comm::mpi
