#include <fmt/format.h>

#include <map>
#include <set>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/nn/layers/dropout.h"
#include "shardformer/apply.h"
#include "shardformer/match.h"

namespace trireme::shardformer {
namespace {

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw ConfigError(fmt::format(text, std::forward<Args>(args)...));
}

using Parts = std::map<const nn::Layer*, const nn::Layer*>;
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
  model.apply([&](torch::nn::Module& module) {
    const auto* layer = dynamic_cast<const nn::Layer*>(&module);
    const auto* owner = layer;  // parts have the role of the layer around them
    for (auto part = parts.find(owner); part != parts.end(); part = parts.find(owner)) owner = part->second;
    if (tensor.count(owner) != 0 || sequence.count(owner) != 0)
      for (const auto& declared : layer->declared()) known.insert(declared.member->unsafeGetTensorImpl());
    else if (dropout.empty() && dynamic_cast<const nn::Dropout*>(layer) != nullptr)
      dropout = layer->path();
  });
  for (const auto& item : model.named_parameters())
    if (known.count(item.value().unsafeGetTensorImpl()) == 0) refuse(kSilent, item.key());
  if (!dropout.empty()) refuse(kSilent, dropout);
}

}  // namespace

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

}  // namespace trireme::shardformer
