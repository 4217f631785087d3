#include "core/setup/lora.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/nn/layers/lora.h"

namespace trireme::train {

void add_adapters(nn::Model& model, const LoraSection& lora, const std::string& head_prefix, const nn::Policy& policy,
                  const shardformer::Roles& roles) {
  nn::LoraOptions options = lora;
  for (const auto& row : policy.tensor)
    if (shardformer::role_of(row, roles.tensor).is_head) options.heads.push_back(row.layer);
  const auto parameters = model.named_parameters();
  const auto in_head = [&](const auto& item) { return item.key().starts_with(head_prefix); };
  if (!head_prefix.empty() && std::any_of(parameters.begin(), parameters.end(), in_head)) {
    const auto head = head_prefix.substr(0, head_prefix.size() - 1);
    if (!options.train) options.train = {head};  // as in PEFT: it is new in most fine-tunings
    options.heads.push_back(head);
  }
  nn::add_lora(model, options);
}

std::map<std::string, std::string> adapter_options(const LoraSection& lora) {
  std::map<std::string, std::string> out;
  for (const auto& field : lora_fields().fields)
    if (field.key != "weights" && field.key != "merge") out["lora." + field.key] = config::to_toml(field.get(&lora));
  return out;
}

std::string adapters_line(const LoraSection& lora, nn::Model& model) {
  const auto layers = nn::adapted_layers(model);
  const auto trained = nn::trained_modules(model);
  return fmt::format("r {}, alpha {}{} on {}: {}{}", lora.rank, lora.alpha,
                     lora.dropout > 0 ? fmt::format(", dropout {}", lora.dropout) : "",
                     text::quantity(static_cast<std::int64_t>(layers.size()), "layer"),
                     text::join(nn::last_parts(layers)),
                     trained.empty() ? "" : fmt::format("; trained in full: {}", text::first_few(trained)));
}

}  // namespace trireme::train
