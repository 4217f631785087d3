// Registry: an explicit, typed list of named factories. It is filled by a function call, never by static initialisers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme {

/// Maps names to factories of one kind of object. `kind` ("model", "schedule") is its name in error messages. A maker
/// that is incomplete while a function of it is not set has missing(), which names that function, or is "".
template <class Maker>
class Registry {
 public:
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  Registry& add(const std::string& name, Maker maker) {
    TRIREME_REQUIRE(!name.empty() && !contains(name), "the {} \"{}\" {}; choose another name", kind_, name,
                    name.empty() ? "has no name" : "exists already");
    if constexpr (requires(const Maker& added) { added.missing(); }) {
      const std::string missing = maker.missing();
      TRIREME_REQUIRE(missing.empty(), "the {} \"{}\" is incomplete: set its {}", kind_, name, missing);
    }
    makers_.emplace(name, std::move(maker));
    return *this;
  }
  /// Adds it under its own name.
  Registry& add(Maker maker) requires requires { maker.name(); }
  {
    const auto name = std::string(maker.name());
    return add(name, std::move(maker));
  }
  /// @throws ConfigError that lists the known names and the nearest one.
  const Maker& at(const std::string& name) const {
    const auto found = makers_.find(name);
    if (found != makers_.end()) return found->second;
    const auto known = names();
    throw ConfigError(
        fmt::format("no {} \"{}\" (known: {}){}", kind_, name, text::join(known), text::did_you_mean(name, known)));
  }
  [[nodiscard]] bool contains(const std::string& name) const { return makers_.count(name) != 0; }
  [[nodiscard]] std::vector<std::string> names() const { return text::keys_of(makers_); }

 private:
  std::string kind_;
  std::map<std::string, Maker> makers_;
};

}  // namespace trireme
