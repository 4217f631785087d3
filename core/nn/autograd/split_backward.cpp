#include "core/nn/autograd/split_backward.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/nn/autograd/backward_hook.h"

namespace trireme::nn {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

variable_list run(const std::vector<SplitBackward::Root>& roots, const edge_list& wanted, bool keep_graph,
                  bool accumulate) {
  edge_list edges;
  variable_list gradients;
  for (const auto& [edge, gradient] : roots) {
    if (!edge.is_valid() || !gradient.defined()) continue;
    edges.push_back(edge);
    gradients.push_back(gradient);
  }
  if (edges.empty()) return variable_list(wanted.size());
  return torch::autograd::Engine::get_default_engine().execute(edges, gradients, keep_graph, /*create_graph=*/false,
                                                               accumulate, wanted);
}

/// The nodes that are reachable from the roots, and which of them lead to the inputs.
class Graph {
 public:
  Graph(const std::vector<SplitBackward::Root>& roots, const std::unordered_set<const Node*>& inputs) {
    for (const auto& root : roots)
      if (root.edge.is_valid()) visit(root.edge.function, inputs);
  }
  /// In reverse topological order: each node comes after all nodes that it leads to.
  [[nodiscard]] const std::vector<std::shared_ptr<Node>>& nodes() const { return nodes_; }
  [[nodiscard]] bool leads_to_input(const Node* node) const { return leads_.at(node); }
  [[nodiscard]] std::vector<BackwardHook*> hooks() const {
    std::vector<BackwardHook*> out;
    for (const auto& node : nodes_)
      if (auto* hook = dynamic_cast<BackwardHook*>(node.get())) out.push_back(hook);
    return out;
  }
  struct Branches {
    std::vector<Edge*> to_inputs;
    std::vector<std::shared_ptr<Node>> to_weights;  ///< those that lead to no input
  };
  [[nodiscard]] Branches branches(Node& node) const {
    Branches out;
    for (auto& edge : node.next_edges()) {
      if (!edge.is_valid()) continue;
      if (leads_to_input(edge.function.get()))
        out.to_inputs.push_back(&edge);
      else
        out.to_weights.push_back(edge.function);
    }
    return out;
  }

 private:
  void visit(const std::shared_ptr<Node>& from, const std::unordered_set<const Node*>& inputs) {
    std::vector<std::pair<std::shared_ptr<Node>, std::size_t>> open{{from, 0}};
    while (!open.empty()) {
      auto& [node, next] = open.back();
      if (next == 0 && !leads_.emplace(node.get(), inputs.count(node.get()) != 0).second) {
        open.pop_back();
        continue;
      }
      const auto& edges = node->next_edges();
      while (next < edges.size() && (!edges[next].is_valid() || leads_.count(edges[next].function.get()) != 0)) ++next;
      if (next < edges.size()) {
        open.emplace_back(edges[next++].function, 0);
        continue;
      }
      for (const auto& edge : edges)
        if (edge.is_valid() && leads_.at(edge.function.get())) leads_[node.get()] = true;
      nodes_.push_back(node);
      open.pop_back();
    }
  }

  std::unordered_map<const Node*, bool> leads_;
  std::vector<std::shared_ptr<Node>> nodes_;
};

/// The gradient accumulators of the parameters that `from` leads to, each once.
std::vector<std::shared_ptr<Node>> accumulators_behind(const std::vector<std::shared_ptr<Node>>& from) {
  std::vector<std::shared_ptr<Node>> out, open(from.rbegin(), from.rend());
  std::unordered_set<const Node*> seen;
  while (!open.empty()) {
    const auto node = std::move(open.back());
    open.pop_back();
    if (!seen.insert(node.get()).second) continue;
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node.get()) != nullptr) out.push_back(node);
    for (const auto& edge : node->next_edges())
      if (edge.is_valid()) open.push_back(edge.function);
  }
  return out;
}

}  // namespace

bool SplitBackward::add_fork(Fork fork, const std::vector<std::shared_ptr<Node>>& weight_branches) {
  for (auto& accumulator : accumulators_behind(weight_branches)) {
    auto at = std::find(accumulators_.begin(), accumulators_.end(), accumulator);
    if (at == accumulators_.end()) {
      at = accumulators_.insert(at, accumulator);
      forks_left_.push_back(0);
    }
    const auto number = static_cast<std::size_t>(at - accumulators_.begin());
    ++forks_left_[number];
    fork.parameters.push_back(number);
  }
  if (fork.parameters.empty()) return false;
  forks_.push_back(std::move(fork));
  return true;
}

SplitBackward::SplitBackward(const std::vector<Root>& roots, const std::vector<at::Tensor>& inputs)
    : input_gradients_(inputs.size()) {
  edge_list wanted;
  std::unordered_set<const Node*> ends;
  for (const auto& input : inputs) {
    wanted.emplace_back(torch::autograd::impl::grad_accumulator(input), 0);
    ends.insert(wanted.back().function.get());
  }
  const Graph graph(roots, ends);
  // Roots that lead only to parameters start the second pass too.
  Fork begin{.into = {}, .parameters = {}, .whole = true};
  std::vector<std::shared_ptr<Node>> weight_branches;
  for (const auto& root : roots)
    if (root.edge.is_valid() && !graph.leads_to_input(root.edge.function.get())) {
      begin.into.push_back(root);
      weight_branches.push_back(root.edge.function);
    }
  const bool any = !weight_branches.empty() && add_fork(begin, weight_branches);
  whole_ = std::none_of(roots.begin(), roots.end(), [&](const Root& root) {
    return root.edge.is_valid() && graph.leads_to_input(root.edge.function.get());
  });
  if (whole_ && !any && !weight_branches.empty())
    forks_.push_back(std::move(begin));  // for the backward hooks on its paths
  if (whole_) return;

  // The pass below accumulates no gradient; those of the weights come in the second pass.
  const auto hooks = graph.hooks();
  for (auto* hook : hooks) hook->set(BackwardPart::inputs);

  std::vector<Edge*> behind;  // edges from forks towards the inputs
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    if (!graph.leads_to_input(node->get())) continue;
    const auto [to_inputs, to_weights] = graph.branches(**node);
    Fork fork{.into = {}, .parameters = {}, .whole = false};
    for (std::uint32_t k = 0; k < (*node)->num_inputs(); ++k) fork.into.push_back({Edge(*node, k), {}});
    if (add_fork(std::move(fork), to_weights)) {
      behind.insert(behind.end(), to_inputs.begin(), to_inputs.end());
    } else if (const auto* hook = dynamic_cast<const BackwardHook*>(node->get())) {
      auto call = [again = hook->call()] { again(BackwardPart::weights); };
      forks_.push_back({.into = {}, .parameters = {}, .whole = false, .call = std::move(call)});
    }
  }
  if (accumulators_.empty()) forks_.clear();  // the hooks' results are not used
  for (const auto& fork : forks_)
    if (!fork.whole)
      for (const auto& root : fork.into) wanted.push_back(root.edge);

  auto found = run(roots, wanted, /*keep_graph=*/true, /*accumulate=*/false);
  auto next = found.begin();
  for (auto& gradient : input_gradients_) gradient = std::move(*next++);
  for (auto& fork : forks_)
    if (!fork.whole)
      for (auto& root : fork.into) root.gradient = std::move(*next++);
  // Hooks that are forks themselves run again in the second pass.
  for (auto* hook : hooks)
    if (graph.leads_to_input(hook)) hook->set(BackwardPart::weights);
  // Cut these edges: otherwise a weight that is used twice would be reached from its later use through the earlier one
  // as well. Nodes that no fork holds are freed.
  for (auto* edge : behind) edge->function.reset();
}

void SplitBackward::weights(const std::function<void(Node& accumulator, at::Tensor gradient)>& use) {
  std::vector<at::Tensor> sums(accumulators_.size());
  for (auto& fork : std::exchange(forks_, {})) {
    if (fork.call) {
      fork.call();
      continue;
    }
    edge_list wanted;
    for (const auto number : fork.parameters) wanted.emplace_back(accumulators_[number], 0);
    // The paths from a fork may overlap those from another fork.
    auto found = run(fork.into, wanted, /*keep_graph=*/!fork.whole, /*accumulate=*/false);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto number = fork.parameters[i];
      auto& sum = sums[number];
      if (found[i].defined()) sum = sum.defined() ? sum + found[i] : std::move(found[i]);
      if (--forks_left_[number] == 0 && sum.defined()) use(*accumulators_[number], std::exchange(sum, {}));
    }
    fork.into.clear();
  }
}

void SplitBackward::accumulate_weights() {
  // Then each parameter's gradient is accumulated as soon as it is computed, without waiting for the others.
  if (whole_ && !forks_.empty()) return backward(std::exchange(forks_, {}).front().into);
  const at::NoGradGuard no_grad;
  weights([](Node& accumulator, at::Tensor gradient) {
    // Accumulation takes over the gradient's memory and adds to it in place; two gradients can be views of one tensor.
    if (gradient.storage().use_count() > 1) gradient = gradient.clone();
    accumulator(variable_list{std::move(gradient)});
  });
}

void backward(const std::vector<SplitBackward::Root>& roots) {
  run(roots, {}, /*keep_graph=*/false, /*accumulate=*/true);
}

std::vector<at::Tensor> gradients(const std::vector<SplitBackward::Root>& roots,
                                  const std::vector<at::Tensor>& leaves) {
  edge_list wanted;
  for (const auto& leaf : leaves)
    if (leaf.requires_grad()) wanted.emplace_back(torch::autograd::impl::grad_accumulator(leaf), 0);
  std::vector<at::Tensor> out(leaves.size());
  if (wanted.empty()) return out;
  auto found = run(roots, wanted, /*keep_graph=*/false, /*accumulate=*/false);
  auto next = found.begin();
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i].requires_grad()) out[i] = std::move(*next++);
  return out;
}

}  // namespace trireme::nn
