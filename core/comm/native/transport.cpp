// Start and end of our own transport, the shared memory of a host.
#include <exception>

#include "core/comm/engine/engine_transport.h"
#include "core/comm/native/wire.h"

namespace trireme::comm {
namespace {

class NativeTransport final : public engine::EngineTransport {
 public:
  NativeTransport(const LaunchInfo& info, c10d::Store& store, const OperationSettings& settings)
      : EngineTransport(settings),
        goodbye_(settings.steady),
        wire_(std::make_shared<native::NativeWire>(native::meet(info, store))) {
    engine::Channel world;
    world.rank = info.rank;
    world.size = info.size;
    world.tag_half = 1 << 30;
    open(wire_, std::move(world));
  }

  ~NativeTransport() override {
    close();
    try {
      // While an error unwinds this rank, the others may never reach this point. A rank that has not ended may still
      // read messages from this one's memory, which therefore stays.
      if (wire_->say_goodbye(std::uncaught_exceptions() <= exceptions_at_start_, goodbye_)) release();
    } catch (const std::exception&) {
      // The wire is broken; the operations have failed with the reason.
    }
  }

  [[nodiscard]] std::string name() const override { return "shared memory"; }

  void abort(int) noexcept override {}  // the other ranks notice that this process has ended

 private:
  std::chrono::milliseconds goodbye_;
  int exceptions_at_start_ = std::uncaught_exceptions();
  std::shared_ptr<native::NativeWire> wire_;
};

}  // namespace

std::unique_ptr<CpuTransport> start_native(const LaunchInfo& info, c10d::Store& store,
                                           const OperationSettings& settings) {
  return std::make_unique<NativeTransport>(info, store, settings);
}

}  // namespace trireme::comm
