// A backward pass in two parts: first the gradients of some inputs, which another rank waits for; later those of the
// weights. Zero-bubble pipelines are built on this (Qi et al., "Zero Bubble Pipeline Parallelism", 2024). It works for
// any graph, layer by layer, as in PyTorch's own pipelining.
//
// A node of the graph is a fork when one path from it leads to the inputs and another leads only to parameters, for
// example the product of a linear layer. The first pass runs the paths to the inputs and stores the gradients that come
// into each fork. The second pass runs each fork again, for its parameters only. Every node computes each gradient
// once. Between the two passes a fork keeps its saved tensors (a linear layer's input); all other nodes on the paths to
// the inputs are done and freed. Backward hooks on those paths (backward_hook.h) are called in both parts; in the
// second, in their order among the forks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <memory>
#include <vector>

namespace trireme::nn {

class SplitBackward {
 public:
  /// Where the pass begins: a gradient that comes into a node of the graph.
  struct Root {
    torch::autograd::Edge edge;
    at::Tensor gradient;
  };
  /// Runs the first pass. `inputs`: the leaves whose gradients are computed; the gradient of one that the graph does
  /// not reach is undefined. If it reaches none, nothing is computed yet and the second pass is a full one. Consumes
  /// the graph.
  SplitBackward(const std::vector<Root>& roots, const std::vector<at::Tensor>& inputs);

  /// The gradients of the inputs, in the order of the inputs.
  [[nodiscard]] std::vector<at::Tensor>& input_gradients() { return input_gradients_; }

  /// Runs the second pass: calls use(accumulator, gradient) for each parameter as soon as its gradient is complete.
  void weights(const std::function<void(torch::autograd::Node& accumulator, at::Tensor gradient)>& use);
  /// Runs the second pass and adds each gradient to its parameter's .grad as a backward pass does, including hooks.
  void accumulate_weights();

 private:
  struct Fork {
    std::vector<Root> into;               ///< the gradients that come into the fork's node
    std::vector<std::size_t> parameters;  ///< indices of the parameters' accumulators
    bool whole;                           ///< the roots are those of a pass of which nothing has run
    std::function<void()> call{};         ///< the callback of a backward hook; the fork then has nothing else
  };
  bool add_fork(Fork fork, const std::vector<std::shared_ptr<torch::autograd::Node>>& weight_branches);

  bool whole_ = false;       ///< the graph reaches no input: everything is left to the second pass
  std::vector<Fork> forks_;  ///< in the order of the backward pass
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::vector<std::size_t> forks_left_;  ///< for each accumulator, the forks that have not run yet
  std::vector<at::Tensor> input_gradients_;
};

/// Runs the whole pass at once and adds to every leaf's .grad. Consumes the graph.
void backward(const std::vector<SplitBackward::Root>& roots);
/// Runs the whole pass at once and returns the gradients of these leaves; undefined for one that the graph does not
/// reach or that does not require a gradient. Consumes the graph.
std::vector<at::Tensor> gradients(const std::vector<SplitBackward::Root>& roots, const std::vector<at::Tensor>& leaves);

}  // namespace trireme::nn
