#include "core/nn/naming.h"

#include <algorithm>

#include "core/base/error.h"

namespace trireme::nn {
namespace {

using NameParts = std::vector<std::string_view>;

NameParts name_parts(std::string_view name) {
  NameParts parts;
  for (auto dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    parts.push_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  parts.push_back(name);
  return parts;
}

/// What each '*' of the pattern stands for in the name; nullopt: the name does not match.
std::optional<NameParts> match(std::string_view pattern, std::string_view name) {
  const auto wanted = name_parts(pattern), parts = name_parts(name);
  if (wanted.size() != parts.size()) return std::nullopt;
  NameParts stars;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (wanted[i] == "*")
      stars.push_back(parts[i]);
    else if (wanted[i] != parts[i])
      return std::nullopt;
  }
  return stars;
}

/// The pattern with its stars replaced. @pre it has as many as `stars`
std::string filled(std::string_view pattern, const NameParts& stars) {
  std::string out;
  std::size_t next = 0;
  for (const auto part : name_parts(pattern)) {
    TRIREME_CHECK(part != "*" || next < stars.size(), "\"{}\" has more stars than the name that it replaces", pattern);
    if (!out.empty()) out += '.';
    out += part == "*" ? stars[next++] : part;
  }
  return out;
}

}  // namespace

bool RedundantTensor::matches(const std::string& name) const {
  const auto further = std::count(name.begin(), name.end(), '.') - std::count(stored.begin(), stored.end(), '.');
  std::string_view last_parts = name;
  for (auto i = further; i > 0; --i) last_parts.remove_prefix(last_parts.find('.') + 1);
  return match(stored, last_parts).has_value();
}

std::optional<StoredName> Naming::find(const std::string& parameter) const {
  for (const auto& row : names)
    if (const auto stars = match(row.parameter, parameter))
      return StoredName{parameter, filled(row.stored, *stars), row.part, row.parts};
  return std::nullopt;
}

const Naming::Unsupported* Naming::refused(const std::string& stored) const {
  const auto found = std::find_if(unsupported.begin(), unsupported.end(),
                                  [&](const auto& row) { return match(row.stored, stored).has_value(); });
  return found == unsupported.end() ? nullptr : &*found;
}

}  // namespace trireme::nn
