#include "core/nn/data_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::nn {
namespace {

const SampleTensor* named(const std::vector<SampleTensor>& tensors, std::string_view name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& each) { return each.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

bool SampleTensor::varies() const { return std::find(shape.begin(), shape.end(), -1) != shape.end(); }

std::string SampleTensor::text() const {
  return fmt::format("{} {} [{}]", name, c10::getDtypeNames(dtype).first, fmt::join(shape, ", "));
}

const SampleTensor* DataSpec::input(std::string_view name) const { return named(inputs, name); }
const SampleTensor* DataSpec::target(std::string_view name) const { return named(targets, name); }

const SampleTensor& DataSpec::required_input(std::string_view name, std::string_view reader) const {
  if (const auto* found = input(name)) return *found;
  std::vector<std::string> offered;
  std::vector<std::string> names;
  for (const auto& each : inputs) {
    offered.push_back(each.text());
    names.push_back(each.name);
  }
  throw ConfigError(fmt::format("{} reads \"{}\", which the data do not have (their inputs: {}){}", reader, name,
                                offered.empty() ? "none" : text::join(offered),
                                text::did_you_mean(std::string(name), names)));
}

}  // namespace trireme::nn
