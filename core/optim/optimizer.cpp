#include "core/optim/optimizer.h"

#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/optim/hybrid_adam.h"
#include "core/optim/sgd.h"

namespace trireme::optim {
namespace {

/// Candidates for correcting a wrong pattern: whole names, and the parts between their dots ("bias", "classifier").
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
  config::check_options(options);
  if (options.name == "sgd") return std::make_unique<Sgd>(options, std::move(groups));
  TRIREME_CHECK(options.name == "hybrid_adam", "no optimizer is called \"{}\"", options.name);
  return std::make_unique<HybridAdam>(options, std::move(groups));
}

}  // namespace trireme::optim
