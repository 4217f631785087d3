// A backward pass in two: first the gradients of some inputs, which somebody waits for; later those of the weights.
// What zero-bubble pipelines are made of (Qi et al., "Zero Bubble Pipeline Parallelism", 2024); for any graph, layer by
// layer, as PyTorch's own pipelining does it.
//
// A node of the graph forks where one way leads on to the inputs and another to parameters alone: a linear layer's
// product, say. The first pass runs the ways to the inputs, and keeps what came into each fork; the second runs each
// fork again, for its parameters alone. Every node computes each gradient once. Between the two a fork keeps what it
// saved (a linear layer's input); all other nodes on the ways to the inputs are done, and freed. Brackets on those ways
// (bracket.h) call in both parts: in the second at their places among the forks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::nn {

class SplitBackward {
 public:
  /// Where the pass begins: gradients that come into the graph's nodes.
  struct Root {
    torch::autograd::Edge edge;
    at::Tensor gradient;
  };
  /// The first pass. `inputs`: leaves that want a gradient; each that the graph does not meet has none (undefined).
  /// Where it meets none nothing is done yet, and the second is a whole pass. Consumes the graph.
  SplitBackward(const std::vector<Root>& roots, const std::vector<at::Tensor>& inputs);

  /// Of the inputs, in their order.
  [[nodiscard]] std::vector<at::Tensor>& input_gradients() { return input_gradients_; }

  /// The second pass, once: calls use(parameter's accumulator, gradient) for each other leaf that has one.
  void weights(const std::function<void(torch::autograd::Node& accumulator, at::Tensor gradient)>& use);
  /// ... which adds each to its parameter's .grad, as a backward pass does, hooks and all.
  void accumulate_weights();

 private:
  struct Fork {
    std::vector<Root> into;               ///< its node's incoming gradients
    std::vector<std::size_t> parameters;  ///< their accumulators' numbers
    bool whole;                           ///< no node but where the pass begins: nothing of it has run
    std::function<void()> call{};         ///< a bracket's, and nothing else
  };
  bool add_fork(Fork fork, const std::vector<std::shared_ptr<torch::autograd::Node>>& ways);

  bool whole_ = false;       ///< it meets no input: all is left to the second pass
  std::vector<Fork> forks_;  ///< in the order of a backward pass
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::vector<std::size_t> forks_left_;  ///< of each accumulator
  std::vector<at::Tensor> input_gradients_;
};

/// The whole pass at once: adds to every leaf's .grad. Consumes the graph.
void backward(const std::vector<SplitBackward::Root>& roots);
/// The whole pass at once: the gradients of these leaves, undefined for one that the graph does not meet or that wants
/// none. Consumes the graph.
std::vector<at::Tensor> gradients(const std::vector<SplitBackward::Root>& roots, const std::vector<at::Tensor>& leaves);

}  // namespace trireme::nn
