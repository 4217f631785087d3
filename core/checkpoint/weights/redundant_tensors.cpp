#include "core/checkpoint/weights/redundant_tensors.h"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::checkpoint {

void RedundantTensors::refuse(const Copy& copy, const std::string& original, const std::string& where) {
  throw ConfigError(fmt::format("{}: the tensors \"{}\" and \"{}\"{} differ, but this model uses one for both; {}",
                                copy.stored.file->path(), copy.stored.name, original, where,
                                copy.row->remedy.empty()
                                    ? "remove the first from the file to use the second alone, or choose other weights"
                                    : copy.row->remedy));
}

bool RedundantTensors::covers(const std::string& name) {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const auto& row) {
    return row.matches(name) || (!row.copy_of.empty() && names_.find(row.stored).name == name);
  });
  if (found == rows_.end()) return false;
  if (found->copy_of.empty()) return true;
  const Copy copy{&*found, {.file = source_.file_of(name), .name = name}};
  const auto original = names_.find(found->copy_of);
  if (original.file == nullptr) {
    if (are_adapters_) of_base_.push_back(copy);
    return are_adapters_;
  }
  const auto all_of = [](const StoredTensor& tensor) {
    return tensor.read(shard::Placement::whole(tensor.name, tensor.info().shape));
  };
  if (copy.stored.info().shape != original.info().shape || !at::equal(all_of(copy.stored), all_of(original)))
    refuse(copy, original.name, "");
  return true;
}

void RedundantTensors::check_adapters() const {
  if (!are_adapters_) return;
  for (const auto& row : rows_) {
    if (row.copy_of.empty()) continue;
    const auto original = names_.find(row.copy_of), copy = names_.find(row.stored);
    if (original.file != nullptr && copy.file == nullptr)
      throw ConfigError(fmt::format(
          "{}: has \"{}\" but not \"{}\", for which PEFT takes the base model's values; this model uses one tensor "
          "for both: train both in PEFT with ensure_weight_tying, or load the model that PEFT merges",
          original.file->path(), original.name, copy.name));
  }
}

void RedundantTensors::check_copies(const std::vector<nn::Parameter>& parameters) const {
  for (const auto& copy : of_base_)
    for (const auto& parameter : parameters)
      if (parameter.name == copy.row->copy_of) {
        const auto& value = parameter.value;
        const bool same = copy.stored.info().shape == parameter.placement.stored_shape() &&
                          at::equal(copy.stored.read(parameter.placement).to(value.options()), value);
        if (!same) refuse(copy, parameter.name, " of the base model");
      }
}

std::string without_numbers(const std::string& name) {
  auto parts = text::split(name, '.');
  for (auto& part : parts)
    if (!part.empty() && part.find_first_not_of("0123456789") == part.npos) part = "*";
  return text::join(parts, ".");
}

void check_depth(const std::vector<std::string>& unused, const std::set<std::string>& kinds, const std::string& path) {
  std::vector<std::string> of_layers;
  for (const auto& name : unused)
    if (kinds.count(without_numbers(name)) != 0) of_layers.push_back(name);
  if (of_layers.empty()) return;
  throw CheckpointError(fmt::format(
      "{}: {} of layers that this model does not have: {}; set the model's number of layers in [model] to "
      "that of the weights, or choose weights of this size",
      path, text::quantity(static_cast<std::int64_t>(of_layers.size()), "tensor"), text::first_few(of_layers)));
}

void check_adapters(const std::vector<std::string>& unused, const std::string& path, bool are_adapters) {
  if (are_adapters && !unused.empty())
    throw CheckpointError(
        fmt::format("{}: {} of layers that have no adapters here: {}; check target and train of "
                    "[lora]",
                    path, text::quantity(static_cast<std::int64_t>(unused.size()), "tensor"), text::first_few(unused)));
  const auto adapter = std::find_if(unused.begin(), unused.end(),
                                    [](const auto& name) { return name.find(".lora_A.") != std::string::npos; });
  if (adapter != unused.end())
    throw CheckpointError(
        fmt::format("{}: these weights have adapters ({}), but the model has none; add the section [lora] with which "
                    "they were trained",
                    path, *adapter));
}

}  // namespace trireme::checkpoint
