// EngineTransport: what the transports of CPU tensors have in common: an engine on a wire, and a backend for each
// group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/comm/engine/backend.h"
#include "core/comm/transport.h"

namespace trireme::comm::engine {

/// A transport calls open() when its wire runs, and close() before it shuts its wire down.
class EngineTransport : public CpuTransport {
 public:
  ~EngineTransport() override;
  void join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) override;
  std::string decide(const std::string& mine, const Answer& answer) override;
  void stage_cuda(c10::Device device) override;

 protected:
  explicit EngineTransport(const OperationSettings& settings);
  /// @param world the channel of all ranks, of which the caller has set the context, the rank, the size and tag_half.
  void open(std::shared_ptr<Wire> wire, Channel world);
  void close();
  /// To be called when the wire is shut down.
  void release() { engine_->release(); }

 private:
  class Channels;
  OperationSettings settings_;
  bool stage_cuda_ = false;
  Channel world_;
  std::shared_ptr<Engine> engine_;
  c10::intrusive_ptr<Backend> agreement_;  // over all ranks, for creating groups
  std::unique_ptr<Channels> channels_;
};

}  // namespace trireme::comm::engine
