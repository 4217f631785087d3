#include "core/booster/torch_optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <set>
#include <string>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/optim/optimizers.h"

namespace trireme {
namespace {

/// One parameter group. `method`: what all groups of an optimizer must have in common, as text and as a factory.
struct TorchGroup {
  double lr = 0, weight_decay = 0;
  std::string method_text;
  optim::OptimizerFactory method;
  std::set<std::string> names;
};

template <class Options>
void read_adam(const Options& options, bool adamw, TorchGroup& group) {
  TRIREME_REQUIRE(!options.amsgrad(), "the optimizer has amsgrad = true, which no plugin supports; set it to false");
  const auto [first, second] = options.betas();
  group.lr = options.lr();
  group.weight_decay = options.weight_decay();
  group.method_text = fmt::format("betas {}, {}, eps {}", first, second, options.eps());
  group.method = optim::hybrid_adam({.betas = {first, second}, .eps = options.eps(), .adamw = adamw});
}

void read_sgd(const torch::optim::SGDOptions& options, TorchGroup& group) {
  group.lr = options.lr();
  group.weight_decay = options.weight_decay();
  group.method_text = fmt::format("momentum {}, dampening {}, nesterov {}", options.momentum(), options.dampening(),
                                  options.nesterov());
  group.method =
      optim::sgd({.momentum = options.momentum(), .nesterov = options.nesterov(), .dampening = options.dampening()});
}

TorchGroup read_group(const torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options) {
  TorchGroup group;
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr)
    read_adam(static_cast<const torch::optim::AdamWOptions&>(options), /*adamw=*/true, group);
  else if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr)
    read_adam(static_cast<const torch::optim::AdamOptions&>(options), /*adamw=*/false, group);
  else if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr)
    read_sgd(static_cast<const torch::optim::SGDOptions&>(options), group);
  else
    throw UsageError(
        "of torch::optim's optimizers, AdamW, Adam and SGD can be boosted; for others, pass "
        "optim::OptimizerOptions with one of Trireme's methods or a program's own");
  return group;
}

/// A pattern (text::matches()) that matches this one of the names. @throws UsageError when there is none
std::string exact_pattern(const std::string& name, const std::vector<nn::Declaration>& all) {
  for (std::size_t star = 0; star <= name.size(); ++star) {
    const auto pattern = name.substr(0, star) + "*" + name.substr(star);
    bool only = true;
    for (const auto& other : all) only = only && (other.name == name || !text::matches(other.name, pattern));
    if (only) return pattern;
  }
  throw UsageError(
      fmt::format("no pattern matches the parameter \"{}\" alone; pass "
                  "optim::OptimizerOptions with groups of your own",
                  name));
}

std::vector<std::string> exact_patterns(const std::set<std::string>& names, const std::vector<nn::Declaration>& all) {
  std::vector<std::string> patterns;
  for (const auto& name : names) patterns.push_back(exact_pattern(name, all));
  return patterns;
}

std::vector<TorchGroup> read_groups(torch::optim::Optimizer& optimizer,
                                    const std::vector<nn::Declaration>& parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& p : parameters) names[p.value.unsafeGetTensorImpl()] = p.name;
  std::vector<TorchGroup> groups;
  for (const auto& of_torch : optimizer.param_groups()) {
    if (of_torch.params().empty()) continue;
    auto& group = groups.emplace_back(read_group(optimizer, of_torch.options()));
    for (const auto& tensor : of_torch.params()) {
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      TRIREME_REQUIRE(found != names.end(),
                      "the optimizer has a parameter that is not the model's; make it with "
                      "model->parameters() of the model that it comes with");
      group.names.insert(found->second);
    }
  }
  TRIREME_REQUIRE(!groups.empty(), "the optimizer has no parameters");
  return groups;
}

}  // namespace

optim::OptimizerOptions optimizer_options(torch::optim::Optimizer& optimizer,
                                          const std::vector<nn::Declaration>& parameters) {
  TRIREME_REQUIRE(optimizer.state().empty(),
                  "the optimizer has already made steps, whose state would be lost; pass it "
                  "before the first step");
  const auto groups = read_groups(optimizer, parameters);
  const auto& base = groups.front();
  optim::OptimizerOptions out{.lr = base.lr, .weight_decay = base.weight_decay, .method = base.method};
  std::set<std::string> trained;
  for (const auto& group : groups) {
    trained.insert(group.names.begin(), group.names.end());
    TRIREME_REQUIRE(group.method_text == base.method_text,
                    "the optimizer's groups differ in more than lr and weight_decay: {}, but "
                    "{}; give all groups the same other options",
                    base.method_text, group.method_text);
    if (group.lr == base.lr && group.weight_decay == base.weight_decay) continue;
    TRIREME_REQUIRE(base.lr > 0 || group.lr == 0,
                    "the learning rate of the optimizer's first group is 0, of which that of "
                    "another group cannot be a multiple; reorder the groups");
    out.groups.push_back({.parameters = exact_patterns(group.names, parameters),
                          .lr_scale = base.lr > 0 ? group.lr / base.lr : 1,
                          .weight_decay = group.weight_decay});
  }
  std::set<std::string> others;
  for (const auto& p : parameters)
    if (trained.count(p.name) == 0) others.insert(p.name);
  out.freeze = exact_patterns(others, parameters);
  return out;
}

}  // namespace trireme
