#include "core/optim/optimizer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/table.h"

namespace trireme::optim {
namespace {

constexpr const char* kEmptyPattern =
    "holds an empty name, which would match every parameter; to mean all, write \"*\"";

/// Candidates for correcting a wrong pattern: whole names, and the parts between their dots ("bias", "classifier").
std::vector<std::string> candidates(const std::vector<NamedTensor>& parameters) {
  std::set<std::string> out;
  for (const auto& parameter : parameters) {
    out.insert(parameter.name);
    for (auto& part : text::split(parameter.name, '.')) out.insert(std::move(part));
  }
  return {out.begin(), out.end()};
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  for (const auto& pattern : patterns)
    if (text::matches(name, pattern)) return true;
  return false;
}

void check_patterns(const std::string& key, const std::vector<std::string>& patterns,
                    const std::vector<NamedTensor>& parameters) {
  for (const auto& pattern : patterns) {
    bool found = false;
    for (const auto& parameter : parameters) found = found || text::matches(parameter.name, pattern);
    if (found && !pattern.empty()) continue;
    auto hint = text::did_you_mean(pattern, candidates(parameters));
    if (hint.empty() && !parameters.empty())
      hint = fmt::format("; parameters are called {} ... {}", parameters.front().name, parameters.back().name);
    throw ConfigError(fmt::format("{}: \"{}\" matches no parameter{}", key, pattern, hint));
  }
}

/// Checks that no_decay names a trained parameter. @throws ConfigError
void check_no_decay(const OptimizerOptions& options, const std::vector<NamedTensor>& parameters) {
  const auto has_effect = [&](const NamedTensor& parameter) {
    return !parameter.frozen && !any_matches(options.freeze, parameter.name) &&
           any_matches(options.no_decay, parameter.name);
  };
  if (options.no_decay.empty() || parameters.empty() || std::any_of(parameters.begin(), parameters.end(), has_effect))
    return;
  throw ConfigError(fmt::format("optimizer.no_decay: {} matches only frozen parameters, so it has no effect; remove it",
                                text::join(options.no_decay)));
}

/// A key of a [[optimizer.group]], by the group's index; config::with_location() finds it in the file.
std::string group_key(std::size_t index, const char* key) {
  return fmt::format("optimizer.group[{}].{}", index + 1, key);
}

/// The first group that the parameter belongs to, from `begin` on; their number if there is none.
std::size_t group_of(const OptimizerOptions& options, const std::string& name, std::size_t begin = 0) {
  std::size_t of = begin;
  while (of < options.groups.size() && !any_matches(options.groups[of].parameters, name)) ++of;
  return of;
}

/// Checks that the group `index` changes something. `decayed`, `undecayed`: its parameters with and without weight
/// decay. @throws ConfigError
void check_group(const OptimizerOptions& options, std::size_t index, const std::vector<Slot>& decayed,
                 const std::vector<Slot>& undecayed) {
  const auto& group = options.groups[index];
  const auto parameters = text::join(group.parameters);
  if (decayed.empty() && undecayed.empty())
    throw ConfigError(fmt::format("{}: {} matches only parameters that are frozen or in a group before it; remove it",
                                  group_key(index, "parameters"), parameters));
  if (group.weight_decay.value_or(0) > 0 && decayed.empty())
    throw ConfigError(
        fmt::format("{}: has no effect, because optimizer.no_decay names all parameters of the group; "
                    "remove it, or change no_decay",
                    group_key(index, "weight_decay")));
  // A value that is written may equal that of all others by chance, as in a sweep.
  if (group.lr_scale != 1 || group.weight_decay) return;
  // A group like all other parameters still keeps its own out of the groups after it.
  const auto kept_out = [&](const Slot& slot) {
    return group_of(options, slot.name, index + 1) < options.groups.size();
  };
  for (const auto* slots : {&decayed, &undecayed})
    if (std::any_of(slots->begin(), slots->end(), kept_out)) return;
  throw ConfigError(
      fmt::format("{}: {} would be trained as all other parameters, so the group has no effect; set its lr_scale or "
                  "weight_decay, or remove it",
                  group_key(index, "parameters"), parameters));
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
            for (const auto& [key, patterns] : {std::pair{"no_decay", &o.no_decay}, {"freeze", &o.freeze}})
              if (std::find(patterns->begin(), patterns->end(), "") != patterns->end())
                section.fail(key, kEmptyPattern);
          });
  return table;
}

const Fields<GroupOptions>& group_fields() {
  using O = GroupOptions;
  static const auto table =
      Fields<O>("optimizer.group",
                "Parameters with their own learning rate or weight decay. The section may be repeated; a parameter "
                "belongs to the first group whose patterns match its name.")
          .repeated()
          .add("parameters", &O::parameters,
               "The group's parameters: parts of their names, or patterns with *; required.")
          .add("lr_scale", &O::lr_scale, "Factor of the learning rate.", {.min = 0})
          .add("weight_decay", &O::weight_decay, "Weight decay of the group. Unset: optimizer.weight_decay.",
               {.min = 0})
          .rule([](const O& o, const CheckedSection& section) {
            if (o.parameters.empty()) section.fail("parameters", "is required: the names of the group's parameters");
            if (std::find(o.parameters.begin(), o.parameters.end(), "") != o.parameters.end())
              section.fail("parameters", kEmptyPattern);
          });
  return table;
}

std::string problem_of_no_decay(const OptimizerOptions& options) {
  const bool decays = options.weight_decay > 0 ||
                      std::any_of(options.groups.begin(), options.groups.end(),
                                  [](const GroupOptions& group) { return group.weight_decay.value_or(0) > 0; });
  return options.no_decay.empty() || decays
             ? ""
             : "has no effect while weight_decay is 0; set optimizer.weight_decay, or remove no_decay";
}

void check_options(const OptimizerOptions& options) {
  config::check_options(optimizer_fields(), options);
  if (const auto problem = problem_of_no_decay(options); !problem.empty())
    throw ConfigError("optimizer.no_decay: " + problem);
  for (const auto& group : options.groups) config::check_options(group_fields(), group);
  config::check_own_options(options.method);
}

std::vector<ParamGroup> make_groups(const OptimizerOptions& options, const std::vector<NamedTensor>& parameters) {
  check_patterns("optimizer.freeze", options.freeze, parameters);
  check_patterns("optimizer.no_decay", options.no_decay, parameters);
  // Each of the user's groups, and after them the one of all other parameters, with and without weight decay.
  std::vector<ParamGroup> groups;
  const auto add = [&](const std::string& label, double weight_decay, double lr_scale) {
    groups.push_back({label + "decay", weight_decay, lr_scale, {}});
    groups.push_back({label + "no_decay", 0, lr_scale, {}});
  };
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const auto& group = options.groups[g];
    check_patterns(group_key(g, "parameters"), group.parameters, parameters);
    add(text::join(group.parameters) + " ", group.weight_decay.value_or(options.weight_decay), group.lr_scale);
  }
  add("", options.weight_decay, 1);
  for (const auto& [name, value, frozen] : parameters) {
    if (frozen || any_matches(options.freeze, name)) {
      value.requires_grad_(false);
      continue;
    }
    groups[2 * group_of(options, name) + (any_matches(options.no_decay, name) ? 1 : 0)].slots.push_back(
        {name, value, {}});
  }
  for (std::size_t g = 0; g < options.groups.size() && !parameters.empty(); ++g)
    check_group(options, g, groups[2 * g].slots, groups[2 * g + 1].slots);
  std::erase_if(groups, [](const ParamGroup& group) { return group.slots.empty(); });
  if (groups.empty() && !parameters.empty())
    throw ConfigError(options.freeze.empty()
                          ? std::string("every parameter is frozen by the model; nothing is left to train")
                          : fmt::format("optimizer.freeze: {} matches all {} parameters; nothing is left to train",
                                        text::join(options.freeze), parameters.size()));
  check_no_decay(options, parameters);
  return groups;
}

std::string print_groups(const OptimizerOptions& options) {
  std::string out;
  for (const auto& group : options.groups) out += "\n" + config::print_section(group_fields(), &group);
  return out;
}

std::unique_ptr<Optimizer> make(const OptimizerOptions& options, std::vector<ParamGroup> groups) {
  check_options(options);
  return options.method(options, std::move(groups));
}

}  // namespace trireme::optim
