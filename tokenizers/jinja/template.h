// Templates in Jinja's language, as Hugging Face's chat templates are written: a template and its variables give a
// text. A template means what it means to transformers: Jinja's sandbox with trim_blocks and lstrip_blocks, break,
// continue, {% generation %}, raise_exception() and strftime_now().
//
// It has what chat templates use: the tags of Parser::statement() in parser.cpp, and the functions, filters, tests and
// methods in the table of builtins.cpp. Anything else of Jinja is refused: an unknown tag or operator when the template
// is read, an unknown filter, test or method when it is used. A generator, a range or a dict's view is a list here.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::jinja {

struct Node;

struct Rendered {
  std::string text;
  /// The bytes between each {% generation %} and its {% endgeneration %}: begin and end.
  std::vector<std::pair<std::size_t, std::size_t>> generated;
};

/// Thread-safe. A template may come from a stranger: its nesting, steps and texts are limited, and so its time and
/// memory.
class Template {
 public:
  /// @throws DataError with the line of what is wrong
  explicit Template(std::string_view source);

  /// `variables` is an object. `now`: the time of strftime_now(); unset: that is undefined, so that a text does not
  /// depend on the day. @throws DataError with the line and what raise_exception() says or what is wrong
  [[nodiscard]] Rendered render(const nlohmann::ordered_json& variables,
                                std::optional<std::time_t> now = std::nullopt) const;

  /// Whether it has a {% generation %}.
  [[nodiscard]] bool has_generation() const;

 private:
  std::shared_ptr<const Node> root_;
};

}  // namespace trireme::jinja
