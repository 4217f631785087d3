#include "core/optim/optimizer.h"

#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/optim/hybrid_adam.h"
#include "core/optim/sgd.h"

namespace trireme::optim {
namespace {

/// What a mistaken pattern may have meant: whole names, and the words between their dots ("bias", "classifier").
std::vector<std::string> candidates(const std::vector<NamedTensor>& parameters) {
  std::set<std::string> out;
  for (const auto& parameter : parameters) {
    out.insert(parameter.name);
    for (std::size_t begin = 0; begin <= parameter.name.size();) {
      const auto end = std::min(parameter.name.find('.', begin), parameter.name.size());
      out.insert(parameter.name.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return {out.begin(), out.end()};
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  for (const auto& pattern : patterns)
    if (text::matches(name, pattern)) return true;
  return false;
}

void check_patterns(const char* key, const std::vector<std::string>& patterns,
                    const std::vector<NamedTensor>& parameters) {
  for (const auto& pattern : patterns) {
    bool found = false;
    for (const auto& parameter : parameters) found = found || text::matches(parameter.name, pattern);
    if (found && !pattern.empty()) continue;
    auto hint = text::did_you_mean(pattern, candidates(parameters));
    if (hint.empty() && !parameters.empty())
      hint = fmt::format("; parameters are called {} ... {}", parameters.front().name, parameters.back().name);
    throw ConfigError(fmt::format("optimizer.{}: \"{}\" matches no parameter{}", key, pattern, hint));
  }
}

}  // namespace

std::vector<ParamGroup> make_groups(const config::OptimizerOptions& options,
                                    const std::vector<NamedTensor>& parameters) {
  check_patterns("freeze", options.freeze, parameters);
  check_patterns("no_decay", options.no_decay, parameters);
  if (!options.no_decay.empty() && options.weight_decay == 0)
    throw ConfigError("optimizer.no_decay changes nothing while optimizer.weight_decay is 0; remove one of the two");
  ParamGroup decay{"decay", options.weight_decay, 1, {}}, no_decay{"no_decay", 0, 1, {}};
  for (const auto& [name, value] : parameters) {
    if (any_matches(options.freeze, name)) {
      value.requires_grad_(false);
      continue;
    }
    (any_matches(options.no_decay, name) ? no_decay : decay).slots.push_back({name, value, {}});
  }
  std::vector<ParamGroup> groups;
  for (auto* group : {&decay, &no_decay})
    if (!group->slots.empty()) groups.push_back(std::move(*group));
  if (groups.empty() && !parameters.empty())
    throw ConfigError(fmt::format("optimizer.freeze: {} matches all {} parameters; nothing is left to train",
                                  text::join(options.freeze), parameters.size()));
  return groups;
}

std::unique_ptr<Optimizer> make(const config::OptimizerOptions& options, std::vector<ParamGroup> groups) {
  const config::OptimizerOptions defaults;
  const auto unused = [&](bool changed, const char* key, const char* owner) {
    if (changed)
      throw ConfigError(
          fmt::format("optimizer.{} changes nothing with optimizer.name = \"{}\"; remove it, or choose \"{}\"", key,
                      options.name, owner));
  };
  if (options.name == "hybrid_adam") {
    unused(options.momentum != defaults.momentum, "momentum", "sgd");
    unused(options.nesterov, "nesterov", "sgd");
    unused(options.dampening != defaults.dampening, "dampening", "sgd");
    if (options.betas.size() != 2)
      throw ConfigError(
          fmt::format("optimizer.betas has {} numbers, and takes two: [0.9, 0.999]", options.betas.size()));
    for (const double beta : options.betas)
      if (!(beta >= 0 && beta < 1)) throw ConfigError(fmt::format("optimizer.betas: {} is not in [0, 1)", beta));
    return std::make_unique<HybridAdam>(options, std::move(groups));
  }
  if (options.name == "sgd") {
    unused(options.betas != defaults.betas, "betas", "hybrid_adam");
    unused(options.eps != defaults.eps, "eps", "hybrid_adam");
    unused(options.adamw != defaults.adamw, "adamw", "hybrid_adam");
    if (options.nesterov && (options.momentum <= 0 || options.dampening != 0))
      throw ConfigError("optimizer.nesterov needs optimizer.momentum above 0 and optimizer.dampening = 0");
    if (options.dampening != 0 && options.momentum == 0)
      throw ConfigError(
          "optimizer.dampening changes nothing while optimizer.momentum is 0; set a momentum or remove it");
    return std::make_unique<Sgd>(options, std::move(groups));
  }
  const std::vector<std::string> known{"hybrid_adam", "sgd"};
  throw ConfigError(fmt::format("optimizer.name: no optimizer \"{}\" (known: {}){}", options.name, text::join(known),
                                text::did_you_mean(options.name, known)));
}

}  // namespace trireme::optim
