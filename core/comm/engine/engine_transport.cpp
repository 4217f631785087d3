#include "core/comm/engine/engine_transport.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/error.h"

namespace trireme::comm::engine {
namespace {

constexpr std::int64_t kLongestText = 512;

at::Tensor text_tensor(const std::string& text) {
  TRIREME_CHECK(static_cast<std::int64_t>(text.size()) < kLongestText, "a message of {} bytes is too long",
                text.size());
  auto tensor = at::zeros({kLongestText}, at::kByte);
  std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

}  // namespace

void EngineTransport::open(std::shared_ptr<Wire> wire, Channel world) {
  world_ = std::move(world);
  world_.axis = "world";
  world_.ranks.resize(static_cast<std::size_t>(world_.size));
  std::iota(world_.ranks.begin(), world_.ranks.end(), 0);
  world_.flight = flight::join("world setup", world_.ranks, 0);
  engine_ = std::make_shared<Engine>(std::move(wire));
  agreement_ = c10::make_intrusive<Backend>(engine_, std::make_shared<Channel>(world_),
                                            OperationSettings{settings_.first, settings_.first, settings_.check});
  channels_ = std::make_unique<Channels>(engine_, world_, agreement_);
}

void EngineTransport::close() {
  channels_.reset();
  agreement_.reset();
  engine_->stop();
}

void EngineTransport::join(c10d::ProcessGroup* group, const std::vector<int>& ranks, const std::string& axis) {
  using Type = c10d::ProcessGroup::BackendType;
  const auto channel = channels_->take(ranks, axis);
  if (group == nullptr) return;
  const auto backend = c10::make_intrusive<Backend>(engine_, channel, settings_);
  group->setBackend(c10::kCPU, Type::CUSTOM, backend);
  if (stage_cuda_) group->setBackend(c10::kCUDA, Type::CUSTOM, backend);
  group->setDefaultBackend(Type::CUSTOM);
}

std::string EngineTransport::decide(const std::string& mine, const Answer& answer) {
  std::vector<at::Tensor> input{text_tensor(mine)}, answered{at::zeros({kLongestText}, at::kByte)};
  std::vector<std::vector<at::Tensor>> all;
  if (world_.rank == 0) {
    all.emplace_back();
    for (int r = 0; r < world_.size; ++r) all[0].push_back(at::zeros({kLongestText}, at::kByte));
  }
  agreement_->gather(all, input, {.asyncOp = false})->wait();
  if (world_.rank == 0) {
    std::vector<std::string> said;
    for (const auto& text : all[0]) said.emplace_back(static_cast<const char*>(text.data_ptr()));
    answered[0] = text_tensor(answer(said));
  }
  agreement_->broadcast(answered, {.asyncOp = false})->wait();
  return static_cast<const char*>(answered[0].data_ptr());
}

void EngineTransport::stage_cuda(c10::Device device) {
  stage_cuda_ = true;
  engine_->use(device);
}

}  // namespace trireme::comm::engine
