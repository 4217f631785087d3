#include "core/data/class_names.h"

#include <fmt/format.h>

#include <map>

namespace trireme::data {

std::optional<std::pair<std::size_t, std::size_t>> alike_classes(const std::vector<std::string>& classes) {
  std::map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (const auto [found, is_new] = first.try_emplace(classes[i], i); !is_new) return std::pair{found->second, i};
  return std::nullopt;
}

std::vector<std::string> numbered_names(std::size_t classes) {
  std::vector<std::string> out(classes);
  for (std::size_t i = 0; i < classes; ++i) out[i] = std::to_string(i);
  return out;
}

std::vector<std::string> distinct_names(const std::vector<std::string>& classes) {
  std::map<std::string, int> count;
  for (const auto& name : classes) ++count[name];
  auto out = classes;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (count[classes[i]] > 1) out[i] = fmt::format("{} ({})", classes[i], i);
  return out;
}

}  // namespace trireme::data
