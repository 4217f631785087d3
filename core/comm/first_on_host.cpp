#include "core/comm/first_on_host.h"

#include <exception>

#include "core/base/error.h"
#include "core/comm/host_values.h"

namespace trireme::comm {
namespace {

/// Calls body() on the first ranks, then on the others. `name`: of the caller's function, for errors.
void run_first(const World& world, bool first, const char* name, const std::function<void()>& body) {
  std::exception_ptr error;
  try {
    if (first) body();
  } catch (...) {
    error = std::current_exception();
  }
  // This is the barrier, and no rank waits in vain for one that failed.
  const bool failed = any_rank(world.group(), error != nullptr);
  if (error) std::rethrow_exception(error);
  if (failed) throw CommError(fmt::format("a rank that runs first failed in {}(); see that rank's error", name));
  if (!first) body();
}

}  // namespace

void first_on_host(const World& world, const std::function<void()>& body, const char* name) {
  run_first(world, world.info().local_rank == 0, name, body);
}

void first_on_rank_0(const World& world, const std::function<void()>& body, const char* name) {
  run_first(world, world.rank() == 0, name, body);
}

}  // namespace trireme::comm
