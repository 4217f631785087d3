#include "core/comm/first_on_host.h"

#include <ATen/ops/full.h>

#include <exception>

#include "core/base/error.h"

namespace trireme::comm {

void first_on_host(const World& world, const std::function<void()>& body) {
  const bool first = world.info().local_rank == 0;
  std::exception_ptr error;
  try {
    if (first) body();
  } catch (...) {
    error = std::current_exception();
  }
  // This is the barrier, and no rank waits in vain for one that failed.
  const auto failed = at::full({}, error ? 1 : 0, at::TensorOptions(at::kInt).device(world.device()));
  world.group().all_reduce(failed, ReduceOp::max);
  if (error) std::rethrow_exception(error);
  if (failed.item<int>() != 0)
    throw CommError("the first rank of a host failed in first_on_host(); see that rank's error");
  if (!first) body();
}

}  // namespace trireme::comm
