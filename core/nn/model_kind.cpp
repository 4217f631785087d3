#include "core/nn/model_kind.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::nn {
namespace {

bool is_unset(const FieldValue& value) { return value.index() == 0; }

/// @throws ConfigError for a name that no preset has
const std::vector<FieldValue>& preset_values(const Presets& presets, const std::string& section,
                                             const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [each, values] : presets.names) {
    if (each == name) return values;
    known.push_back(each);
  }
  throw ConfigError(fmt::format("{}.{}: no such {} \"{}\" (known: {}){}", section, presets.key, presets.key, name,
                                text::join(known), text::did_you_mean(name, known)));
}

std::vector<std::string> set_preset(const FieldTable& fields, void* options, bool or_fallback) {
  const auto& presets = fields.presets;
  const auto* row = fields.find(presets.key);
  if (row == nullptr) return {};
  const auto given = row->get(options);
  if (is_unset(given) && !or_fallback) return {};
  const auto name = is_unset(given) ? presets.fallback : std::get<std::string>(given);
  const auto& values = preset_values(presets, fields.section, name);
  std::vector<std::string> keys = presets.keys, set;
  if (or_fallback) keys.insert(keys.end(), presets.further.begin(), presets.further.end());
  bool has_effect = false;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto& field = *fields.find(keys[i]);
    const auto ours = field.get(options);
    if (i < presets.keys.size()) has_effect = has_effect || is_unset(ours) || ours == values.at(i);
    if (!is_unset(ours)) continue;
    field.set(options, values.at(i));
    set.push_back(keys[i]);
  }
  if (!is_unset(given) && !has_effect)
    throw ConfigError(fmt::format(
        "{}.{}: \"{}\" has no effect, because {} and {} are set too; remove it, or them", fields.section, presets.key,
        name, text::join(std::span(presets.keys).first(presets.keys.size() - 1)), presets.keys.back()));
  row->set(options, {});
  return set;
}

}  // namespace

std::vector<std::string> apply_preset(const FieldTable& fields, void* options) {
  return set_preset(fields, options, /*or_fallback=*/false);
}

void fill_unset(const FieldTable& fields, void* options) {
  set_preset(fields, options, /*or_fallback=*/true);
  for (const auto& field : fields.fields)
    if (is_unset(field.get(options)) && !is_unset(field.rules.implied)) field.set(options, field.rules.implied);
}

}  // namespace trireme::nn
