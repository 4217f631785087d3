#include "core/base/json_parse.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>

namespace trireme {
namespace {

class TooDeep : public nlohmann::json::exception {
 public:
  explicit TooDeep(const std::string& what) : exception(/*id_=*/0, what.c_str()) {}
};

/// Checks the depth before the parser builds anything. Text that is not JSON may pass: the parser refuses that.
void check_depth(std::string_view text) {
  int depth = 0;
  std::size_t line = 1, line_begin = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '\n':
        ++line;
        line_begin = i + 1;
        break;
      case '"':
        in_string = !in_string;
        break;
      case '\\':
        if (in_string) ++i;
        break;
      case '[':
      case '{':
        if (!in_string && ++depth > kMostJsonLevels)
          throw TooDeep(fmt::format("line {}, column {}: nested deeper than {} levels", line, i - line_begin + 1,
                                    kMostJsonLevels));
        break;
      case ']':
      case '}':
        if (!in_string) --depth;
        break;
      default:
        break;
    }
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& callback) {
  check_depth(text);
  return nlohmann::json::parse(text, callback);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  check_depth(text);
  return nlohmann::ordered_json::parse(text);
}

nlohmann::json parse_json_or_null(std::string_view text) {
  try {
    return parse_json(text);
  } catch (const nlohmann::json::exception&) {
    return nullptr;
  }
}

}  // namespace trireme
