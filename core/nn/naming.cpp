#include "core/nn/naming.h"

#include <algorithm>
#include <cstddef>

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

constexpr std::string_view kMany = "**";

/// What each star of the pattern stands for in the name; nullopt: the name does not match.
std::optional<NameParts> match(std::string_view pattern, std::string_view name) {
  const auto wanted = name_parts(pattern);
  auto parts = name_parts(name);
  if (const auto many = std::find(wanted.begin(), wanted.end(), kMany);
      many != wanted.end() && parts.size() > wanted.size()) {  // joined to one part
    const auto first = parts.begin() + (many - wanted.begin());
    const auto last = first + static_cast<std::ptrdiff_t>(parts.size() - wanted.size());
    *first = {first->data(), static_cast<std::size_t>(last->data() + last->size() - first->data())};
    parts.erase(first + 1, last + 1);
  }
  if (wanted.size() != parts.size()) return std::nullopt;
  NameParts stars;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (wanted[i] == "*" || wanted[i] == kMany)
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
    const bool is_star = part == "*" || part == kMany;
    TRIREME_CHECK(!is_star || next < stars.size(), "\"{}\" has more stars than the name that it replaces", pattern);
    if (!out.empty()) out += '.';
    out += is_star ? stars[next++] : part;
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
  const std::string rest = of_modules ? ".**" : "";
  for (const auto& row : names)
    if (const auto stars = match(row.parameter + rest, parameter))
      return StoredName{parameter, filled(row.stored + rest, *stars), row.part, row.parts};
  return std::nullopt;
}

const Naming::Unsupported* Naming::refused(const std::string& stored) const {
  const auto found = std::find_if(unsupported.begin(), unsupported.end(),
                                  [&](const auto& row) { return match(row.stored, stored).has_value(); });
  return found == unsupported.end() ? nullptr : &*found;
}

}  // namespace trireme::nn
