// A plugin in which c10d fails as NCCL does, on every rank at once: in a call (TROUBLE=call), or on a detached thread
// like NCCL's watchdog (TROUBLE=thread).
#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/booster/plugin_entry.h"

namespace trireme::tests {
namespace {

[[noreturn]] void fail() {
  C10_THROW_ERROR(DistBackendError,
                  "NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error\n"
                  "ncclRemoteError: A call failed possibly due to a network error.\nLast error:\n"
                  "socketProgress: Connection closed by remote peer\n");
}

class Troubled final : public PluginOf<NoOptions> {
 public:
  Troubled() : PluginOf({"plugin.troubled", "Fails."}) {}
  [[nodiscard]] std::string summary() const override { return "Fails as NCCL does."; }
  void check(const RunSettings&) const override {}
  [[nodiscard]] comm::Axes axes(int world_size) const override { return {{"dp", world_size}}; }
  BoostResult boost(ModelSource, const BoostOptions&, comm::Mesh& mesh, const Log&) override {
    if (mesh.world().device().is_meta()) throw std::logic_error("a forecast has no NCCL");
    if (std::string(std::getenv("TROUBLE")) == "call") fail();
    std::thread(fail).detach();
    std::this_thread::sleep_for(std::chrono::seconds(20));
    throw std::logic_error("the thread's error did not end the process");
  }
};

}  // namespace
}  // namespace trireme::tests

TRIREME_PLUGIN(trireme::tests::Troubled)
