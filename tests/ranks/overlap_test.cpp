// Data parallelism hides the transfer of gradients behind the backward pass. Both sleep for a known time here, so that
// the result does not depend on the number of cores. Each block's backward sleeps for kCompute. Each bucket's
// all-reduce takes kTransfer longer than the real one, and they run one after another, as on a wire.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/nn/adapt.h"
#include "core/nn/parameters.h"
#include "plugins/torch_ddp/ddp_model.h"
#include "tests/ranks/world.h"

namespace trireme::tests {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;

constexpr int kBlocks = 8;
constexpr auto kCompute = milliseconds(20);
constexpr auto kTransfer = milliseconds(15);

class SlowWork final : public c10d::Work {
 public:
  SlowWork(c10::intrusive_ptr<c10d::Work> work, Clock::time_point arrival)
      : work_(std::move(work)), arrival_(arrival) {}
  bool isCompleted() override { return Clock::now() >= arrival_ && work_->isCompleted(); }
  bool wait(milliseconds timeout) override {
    std::this_thread::sleep_until(arrival_);
    return work_->wait(timeout);
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Clock::time_point arrival_;
};

class SlowLink final : public c10d::Backend {
 public:
  explicit SlowLink(c10::intrusive_ptr<c10d::Backend> real)
      : c10d::Backend(real->getRank(), real->getSize()), real_(std::move(real)) {}
  const std::string getBackendName() const override { return "slow"; }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return real_->broadcast(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    free_at_ = std::max(free_at_, Clock::now()) + kTransfer;
    return c10::make_intrusive<SlowWork>(real_->allreduce(tensors, options), free_at_);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> real_;
  Clock::time_point free_at_;
};

struct SleepsInBackward : torch::autograd::Function<SleepsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(kCompute);
    return gradients;
  }
};

/// A layer with one parameter of 1 MiB, which fills one bucket.
struct SlowLayer : torch::nn::Module {
  SlowLayer() { weight = register_parameter("weight", at::full({512, 512}, 1.0f / (512 * 512))); }
  at::Tensor forward(const at::Tensor& x) { return SleepsInBackward::apply(x * weight.sum()); }
  at::Tensor weight;
};

comm::Group slow_group() {
  const auto& real = world().group();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(real.rank(), real.size());
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<SlowLink>(real.process_group()->getBackend(c10::kCPU)));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  return comm::Group(group, real.ranks(), "dp", nullptr);
}

Seconds backward_time(BoostedModel& model) {
  data::Batch batch;
  batch.inputs = {{"x", at::full({1}, world().rank() + 1.0f)}};
  auto output = model.forward(batch).front().sum();
  world().group().barrier();
  const auto start = Clock::now();
  output.backward();
  return Clock::now() - start;
}

TEST(OverlapTime, a_backward_pass_hides_the_transfer_of_gradients) {
  TRIREME_ONLY_ON_CPU("the host sleeps in place of compute");
  torch::nn::Sequential layers;
  for (int i = 0; i < kBlocks; ++i) layers->push_back(SlowLayer());
  std::shared_ptr<nn::Model> network = nn::adapt(layers);
  auto parameters = nn::parameters(*network);
  plugins::DdpModel model(network, parameters, BoostOptions{}, {.bucket_cap_mb = 1}, at::kCPU, slow_group());
  model.train(true);

  const Seconds transfer = kBlocks * kTransfer;
  // The last bucket's transfer cannot be hidden, because it starts when the backward pass ends.
  const Seconds can_hide = transfer - kTransfer;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    Seconds compute{};
    {
      const auto local = model.no_sync();
      compute = backward_time(model);
    }
    for (auto& p : model.parameters()) p.value.mutable_grad() = at::Tensor();
    const auto both = backward_time(model);
    // The gradients are sums over the ranks' inputs, which shows that the reduction took place.
    const float expected = static_cast<float>(world().size() * (world().size() + 1)) / 2;
    for (auto& p : model.parameters()) {
      ASSERT_NEAR(p.value.grad().max().item<float>(), expected, 1e-4);
      p.value.mutable_grad() = at::Tensor();
    }
    best = std::max(best, (compute + transfer - both) / can_hide);
  }
  RecordProperty("hidden", std::to_string(best));
  if (world().rank() == 0) std::printf("hidden: %.1f %% of what can be hidden\n", 100 * best);
  EXPECT_GE(best, 0.8);
}

}  // namespace
}  // namespace trireme::tests
