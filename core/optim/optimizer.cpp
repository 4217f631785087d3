#include "core/optim/optimizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/table.h"

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

const Fields<OptimizerOptions>& optimizer_fields() {
  using O = OptimizerOptions;
  static const auto table =
      Fields<O>("optimizer", "The optimizer. The other keys of this section are options of the one that name selects.")
          .add("lr", &O::lr, "The base learning rate, which the schedule scales.", {.min = 0})
          .add("weight_decay", &O::weight_decay, "Weight decay.", {.min = 0})
          .add("no_decay", &O::no_decay, "Parameters without weight decay: parts of their names, or patterns with *.")
          .add("freeze", &O::freeze, "Parameters that are not trained: parts of their names, or patterns with *.")
          .rule([](const O& o, const CheckedSection& section) {
            if (!o.no_decay.empty() && o.weight_decay == 0)
              section.fail("no_decay",
                           "has no effect while weight_decay is 0; set optimizer.weight_decay, or remove no_decay");
            for (const auto& [key, patterns] : {std::pair{"no_decay", &o.no_decay}, {"freeze", &o.freeze}})
              if (std::find(patterns->begin(), patterns->end(), "") != patterns->end())
                section.fail(key, "holds an empty name, which would match every parameter; to mean all, write \"*\"");
          });
  return table;
}

void check_options(const OptimizerOptions& options) {
  config::check_options(optimizer_fields(), options);
  auto scratch = options.method;
  config::check_options(options.method.fields(), options.method.options(), scratch.options());
}

std::vector<ParamGroup> make_groups(const OptimizerOptions& options, const std::vector<NamedTensor>& parameters) {
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

std::unique_ptr<Optimizer> make(const OptimizerOptions& options, std::vector<ParamGroup> groups) {
  check_options(options);
  return options.method(options, std::move(groups));
}

}  // namespace trireme::optim
