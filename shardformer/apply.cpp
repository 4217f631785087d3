#include "shardformer/apply.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/verdict.h"
#include "core/nn/block.h"
#include "core/nn/layers/dropout.h"
#include "shardformer/roles.h"
#include "shardformer/tensor/features.h"

namespace trireme::shardformer {
namespace {

/// Matches name by name: a '*' does not match a dot.
bool meets(std::string_view pattern, std::string_view path) {
  const auto dot = pattern.find('.'), at = path.find('.');
  const auto name = path.substr(0, at), wanted = pattern.substr(0, dot);
  if (wanted.find('*') == std::string_view::npos ? wanted != name : !text::matches(name, wanted)) return false;
  if (dot == std::string_view::npos || at == std::string_view::npos) return dot == at;
  return meets(pattern.substr(dot + 1), path.substr(at + 1));
}

/// The layers whose paths match, each once, even if a shared layer has several parents. @throws ConfigError for none
std::vector<nn::Layer*> layers_of(nn::Model& model, std::string_view pattern) {
  auto found = nn::layers_in(model);
  std::erase_if(found, [&](const nn::Layer* layer) { return !meets(pattern, layer->path()); });
  if (found.empty())
    throw ConfigError(fmt::format(
        "the policy names \"{}\", but the model has no such layer; is the policy for another model?", pattern));
  return found;
}

/// Calls use(row, role, layer) for each layer that a row matches. @throws ConfigError for a role that is not known, and
/// a row that matches no layer
template <class Role, class Use>
void for_each(nn::Model& model, const std::vector<nn::PolicyRow>& rows, const Registry<Role>& roles, const Use& use) {
  for (const auto& row : rows) {
    const auto& role = role_of(row, roles);
    for (auto* layer : layers_of(model, row.layer)) use(row, role, *layer);
  }
}

/// The result of a function of a role's, an extension's perhaps. @throws what the function throws: as a ConfigError
/// that names the role, the layer and `doing`, unless it has another cause
template <class Function>
auto call_role(const nn::PolicyRow& row, const nn::Layer& layer, const std::string& doing, const Function& function) {
  try {
    return function();
  } catch (...) {
    const auto mistake = mistake_of_extension(std::current_exception());
    if (!mistake) throw;
    throw ConfigError(fmt::format("the role \"{}\" of \"{}\": {}: {}", row.role, layer.path(), doing, *mistake));
  }
}

using Parts = std::map<const nn::Layer*, const nn::Layer*>;
/// The layers that are sharded with another one, and that one.
Parts parts_of_layers(nn::Model& model) {
  Parts parts;
  for (const auto* layer : nn::layers_in(model))
    for (const auto* part : layer->sharded_parts()) parts.emplace(part, layer);
  return parts;
}

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw ConfigError(fmt::format(text, std::forward<Args>(args)...));
}

template <class Role>
using Found = std::map<const nn::Layer*, std::pair<const nn::PolicyRow*, const Role*>>;

template <class Role>
Found<Role> check_list(nn::Model& model, const std::vector<nn::PolicyRow>& rows, const Registry<Role>& roles,
                       const Parts& parts, const ParallelSizes& sizes) {
  Found<Role> found;
  for_each(model, rows, roles, [&](const nn::PolicyRow& row, const Role& role, const nn::Layer& layer) {
    const auto [other, inserted] = found.try_emplace(&layer, &row, &role);
    if (!inserted)
      refuse("two entries of the policy, \"{}\" and \"{}\", match the layer \"{}\"; remove one",
             other->second.first->layer, row.layer, layer.path());
    if (const auto part = parts.find(&layer); part != parts.end())
      refuse("\"{}\" is part of \"{}\", which is split as a whole: give that layer a role, not its parts", layer.path(),
             part->second->path());
    if (!role.rule.validate) return;
    const auto why = call_role(row, layer, "validate()", [&] { return role.rule.validate(layer, sizes); });
    if (!why.empty()) refuse("{}", why);
  });
  return found;
}

bool can_have_both(const TensorRole& tensor, const SequenceRole& sequence) {
  using Tokens = TensorRole::Tokens;
  using Place = SequenceRole::Place;
  return (sequence.place == Place::outside && tensor.tokens != Tokens::slices) ||
         (sequence.place == Place::begin && tensor.tokens == Tokens::all_to_full);
}

/// Checks that the policy is complete for sequence parallelism.
void check_complete(nn::Model& model, const Found<TensorRole>& tensor, const Found<SequenceRole>& sequence,
                    const Parts& parts) {
  std::set<SequenceRole::Place> places;
  for (const auto& [layer, of] : sequence) places.insert(of.second->place);
  if (places.count(SequenceRole::Place::begin) == 0 || places.count(SequenceRole::Place::end) == 0)
    refuse(
        "the policy does not say where the tokens are split: give the role scatter_tokens to the layer where slices "
        "begin, and gather_tokens to the layer where they end");
  constexpr auto kSilent =
      "the policy does not say whether \"{}\" sees slices of the tokens; give its layer the role token_wise, or whole";
  std::set<const void*> known;
  std::string dropout;  // the first without a role
  for (const nn::Layer* layer : nn::layers_in(model)) {
    const auto* owner = layer;  // parts have the role of the layer around them
    for (auto part = parts.find(owner); part != parts.end(); part = parts.find(owner)) owner = part->second;
    if (tensor.count(owner) != 0 || sequence.count(owner) != 0)
      for (const auto& declared : layer->declared()) known.insert(declared.member->unsafeGetTensorImpl());
    else if (dropout.empty() && dynamic_cast<const nn::Dropout*>(layer) != nullptr)
      dropout = layer->path();
  }
  for (const auto& item : model.named_parameters())
    if (known.count(item.value().unsafeGetTensorImpl()) == 0) refuse(kSilent, item.key());
  if (!dropout.empty()) refuse(kSilent, dropout);
}

/// Shards the layer. @throws ConfigError for a slice of which no other ranks hold the rest, because its axis is not
/// that of one of the groups
void cut_layer(const nn::PolicyRow& row, const LayerRule& rule, nn::Layer& layer, const ParallelContext& how) {
  std::vector<std::string> axes{how.groups.tensor.axis()};
  if (how.groups.sequence.valid()) axes.push_back(how.groups.sequence.axis());
  call_role(row, layer, "cut()", [&] {
    rule.cut(layer, how);
    for (const auto* part : nn::layers_in(layer))
      for (const auto& declared : part->declared())
        for (const auto& cut : declared.placement.cuts)
          if (std::find(axes.begin(), axes.end(), cut.axis) == axes.end())
            refuse("{}.{} is cut along axis \"{}\"; a role can cut along the axes of its groups: {}", part->path(),
                   declared.name, cut.axis, text::join(axes));
  });
}

/// An extension's role may cut only some of the parameters that a computation uses together, which LibTorch notices in
/// the first step: its error then names the layer, the role and what was cut.
void name_role_in_errors(const nn::PolicyRow& row, nn::Layer& layer) {
  auto* unary = dynamic_cast<nn::Unary*>(&layer);
  std::vector<std::string> cut, whole;
  for (const auto& declared : layer.declared()) (declared.placement.is_whole() ? whole : cut).push_back(declared.name);
  if (unary == nullptr || cut.empty()) return;
  auto doing = fmt::format("its computation with a slice of {}", text::join(cut));
  if (!whole.empty()) doing += fmt::format(" and all of {}", text::join(whole));
  unary->forward.replace([compute = unary->forward.function(), row, unary, doing = std::move(doing)](
                             const at::Tensor& x, const nn::Context& context) {
    return call_role(row, *unary, doing, [&] { return compute(x, context); });
  });
}

}  // namespace

Roles all_roles() {
  Roles roles;
  for (const auto add :
       {add_attention_role, add_linear_roles, add_dropout_role, add_vocabulary_roles, add_sequence_roles})
    add(roles);
  return roles;
}

std::string validate(nn::Model& model, const nn::Policy& policy, const ParallelSizes& sizes, const Roles& roles) try {
  const auto parts = parts_of_layers(model);
  const auto tensor = check_list(model, policy.tensor, roles.tensor, parts, sizes);
  const auto sequence = check_list(model, policy.sequence, roles.sequence, parts, sizes);
  for_each(model, policy.sequence, roles.sequence, [&](const auto& row, const SequenceRole& role, nn::Layer& layer) {
    const auto other = tensor.find(&layer);
    if (other != tensor.end() && !can_have_both(*other->second.second, role))
      refuse(
          "the layer \"{}\" has a role for tensor parallelism (\"{}\"), which says how it treats slices of the tokens, "
          "and a role for sequence parallelism (\"{}\"); remove the second",
          layer.path(), other->second.first->layer, row.layer);
  });
  if (sizes.mode != Sequence::none) check_complete(model, tensor, sequence, parts);
  return "";
} catch (const ConfigError& error) {
  return error.what();
}

void apply(nn::Model& model, const nn::Policy& policy, const ParallelGroups& groups, const Roles& roles) {
  const auto why = validate(model, policy, groups.sizes(), roles);
  TRIREME_CHECK(why.empty(), "{}", why);
  const auto own = all_roles();
  const ParallelContext how{groups, std::make_shared<ShardedFeatures>()};
  auto with_role = parts_of_layers(model);
  for_each(model, policy.tensor, roles.tensor, [&](const auto& row, const TensorRole& role, nn::Layer& layer) {
    with_role.emplace(&layer, &layer);
    cut_layer(row, role.rule, layer, how);
    if (!own.tensor.contains(row.role)) name_role_in_errors(row, layer);
  });
  // After the others: scatter_tokens adds to what a layer computes.
  for_each(model, policy.sequence, roles.sequence, [&](const auto& row, const SequenceRole& role, nn::Layer& layer) {
    with_role.emplace(&layer, &layer);
    if (groups.mode != Sequence::none) cut_layer(row, role.rule, layer, how);
  });
  for (auto* dropout : nn::layers_in<nn::Dropout>(model))
    if (with_role.count(dropout) == 0) refuse_sharded_features(*dropout, how);
}

std::int64_t classes_of(nn::Model& model, const nn::Policy& policy, const Roles& roles) {
  std::int64_t classes = 0;
  for_each(model, policy.tensor, roles.tensor, [&](const auto& row, const TensorRole& role, const nn::Layer& layer) {
    if (role.classes) classes = call_role(row, layer, "classes()", [&] { return role.classes(layer); });
  });
  return classes;
}

}  // namespace trireme::shardformer
