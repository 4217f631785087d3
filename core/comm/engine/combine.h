// combine(): the arithmetic of reductions on the host, in one pass over all ranks' contributions.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace trireme::comm::engine {

/// output[i] = op over r of sources[r][i], in the order r = 0, 1, ..., so that the bits depend neither on the rank that
/// computes nor on how a tensor is split. `output` may be one of the sources. float16 and bfloat16 accumulate in float
/// and round once. Integers wrap; their average truncates towards zero. For bool, sum and max are "or", product and min
/// are "and". min and max propagate NaN.
/// @throws CommError for any other op or type.
void combine(c10::ScalarType type, c10d::ReduceOp::RedOpType op, void* output, std::span<const void* const> sources,
             std::size_t count);

/// @throws CommError for the same reasons as combine(); called before anything is sent.
void check_combine(c10::ScalarType type, c10d::ReduceOp::RedOpType op);

}  // namespace trireme::comm::engine
