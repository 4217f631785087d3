// Stages for the pipeline executor: each multiplies by its weight and sleeps for known times, like those of the
// simulator.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "core/pipeline/schedule.h"
#include "pipeline/executor.h"
#include "tests/ranks/world.h"

namespace trireme::tests {

using pipeline::Schedule;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Seconds {
  double forward, input, weight;
};

inline void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Computes x * w with a known duration of the forward pass and of each of the two gradients.
struct Paced : torch::autograd::Function<Paced> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, double forward_s,
                            double input_s, double weight_s) {
    rest(forward_s);
    ctx->save_for_backward({x, w});
    ctx->saved_data["input"] = input_s;
    ctx->saved_data["weight"] = weight_s;
    return x * w;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    variable_list out(5);
    if (ctx->needs_input_grad(0)) {
      rest(ctx->saved_data.at("input").toDouble());
      out[0] = grads[0] * saved[1];
    }
    if (ctx->needs_input_grad(1)) {
      rest(ctx->saved_data.at("weight").toDouble());
      out[1] = (grads[0] * saved[0]).sum(0, /*keepdim=*/true);
    }
    return out;
  }
};

/// Every stage multiplies by its weight, stage + 2. It also passes on a tensor of integers, and one that no later stage
/// uses.
class Multiply : public pipeline::Chunks {
 public:
  Multiply(const Schedule& schedule, int rank, Seconds pace) : schedule_(schedule), rank_(rank), pace_(pace) {
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      weights.push_back(at::full({1}, schedule.stage_of(rank, chunk) + 2, on(at::kDouble)).set_requires_grad(true));
  }
  pipeline::Tensors forward(int chunk, pipeline::Tensors inputs, const data::Batch& batch) override {
    const int stage = schedule_.stage_of(rank_, chunk);
    if (const auto& x = batch.inputs.front(); stage == 0)
      inputs = {x * lift, batch.sample_ids.to(x.device()), x * lift};
    if (!probing_) {
      EXPECT_TRUE(inputs.at(1).cpu().equal(batch.sample_ids));
    }
    const auto pace = probing_ ? Seconds{} : pace_;
    auto y = Paced::apply(inputs[0], weights[static_cast<std::size_t>(chunk)], pace.forward, pace.input, pace.weight);
    return {y, inputs[1], stage == 0 ? inputs[2] : inputs[2].detach()};
  }
  pipeline::Tensors probe(int chunk, pipeline::Tensors inputs, const data::Batch& batch) override {
    probing_ = true;
    auto made = forward(chunk, std::move(inputs), batch);
    probing_ = false;
    return made;
  }
  at::Tensor loss(const pipeline::Tensors& outputs, const data::Batch&) override { return outputs[0].sum(); }
  void before_weights(int, bool) override {}
  void after_weights(int, bool last) override { ended += last ? 1 : 0; }
  bool trains(int) const override { return true; }

  at::Tensor lift = at::full({1}, 1.0, on(at::kDouble)).set_requires_grad(true);  ///< so that inputs require a gradient
  pipeline::Tensors weights;
  int ended = 0;

 private:
  Schedule schedule_;
  int rank_;
  Seconds pace_;
  bool probing_ = false;
};

inline std::vector<data::Batch> batches(int microbatches, std::int64_t samples) {
  std::vector<data::Batch> out;
  for (int m = 0; m < microbatches; ++m) {
    data::Batch batch;
    const auto size = m + 1 == microbatches ? samples - 1 : samples;  // the last one is smaller, or empty
    batch.inputs = {{"x", at::arange(1, 1 + size, on(at::kDouble)) + m}};
    batch.sample_ids = at::arange(size, at::kLong) + 10 * m;
    out.push_back(std::move(batch));
  }
  return out;
}

struct Setting {
  const char* name;
  int chunks, microbatches;
};

}  // namespace trireme::tests
