#include "tokenizers/json_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "tokenizers/unicode.h"

namespace trireme::tokenizers {
namespace {

constexpr int kDeepest = 32;

/// A short form of a value, for messages.
std::string shown(const nlohmann::json* from) {
  constexpr std::size_t kMostShown = 60;
  if (from == nullptr) return "nothing";
  const auto& value = *from;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  const auto out = json_text(value);
  return out.size() > kMostShown ? text::printable(repaired(out.substr(0, kMostShown))) + "..." : out;
}

}  // namespace

JsonView::JsonView(const nlohmann::json* value, std::string path, const JsonView& parent)
    : value_(value), path_(std::move(path)), depth_(parent.depth_ + 1) {
  if (depth_ > kDeepest) refuse("the parts are nested too deeply");
}

JsonView JsonView::find(const std::string& key) const {
  const auto& members = object();
  const auto found = members.find(key);
  const bool is_first = path_.ends_with(':');
  return {found == members.end() ? nullptr : &*found, path_ + (is_first ? " " : ".") + key, *this};
}

JsonView JsonView::at(const std::string& key) const {
  auto out = find(key);
  if (!object().contains(key)) refuse(fmt::format("\"{}\" is missing", key));
  return out;
}

JsonView JsonView::element(std::size_t i) const { return {&array().at(i), fmt::format("{}[{}]", path_, i), *this}; }

std::vector<JsonView> JsonView::elements() const {
  std::vector<JsonView> out;
  for (std::size_t i = 0; i < array().size(); ++i) out.push_back(element(i));
  return out;
}

const std::string& JsonView::text() const {
  if (value_ == nullptr || !value_->is_string()) refuse(fmt::format("a text is expected, not {}", shown(value_)));
  return value_->get_ref<const std::string&>();
}

std::string JsonView::text_or(const std::string& otherwise) const { return is_null() ? otherwise : text(); }

bool JsonView::flag() const {
  if (value_ == nullptr || !value_->is_boolean())
    refuse(fmt::format("true or false is expected, not {}", shown(value_)));
  return value_->get<bool>();
}

std::int64_t JsonView::number(std::int64_t most) const {
  if (value_ == nullptr || !value_->is_number_unsigned() ||
      value_->get<std::uint64_t>() > static_cast<std::uint64_t>(most))
    refuse(fmt::format("a number from 0 to {} is expected, not {}", text::thousands(most), shown(value_)));
  return value_->get<std::int64_t>();
}

double JsonView::real() const {
  if (value_ == nullptr || !value_->is_number()) refuse(fmt::format("a number is expected, not {}", shown(value_)));
  return value_->get<double>();
}

const std::string& JsonView::character() const {
  if (count_chars(text()) != 1) refuse(fmt::format("one character is expected, not {}", shown(value_)));
  return text();
}

const nlohmann::json& JsonView::object() const {
  if (value_ == nullptr || !value_->is_object()) refuse(fmt::format("an object is expected, not {}", shown(value_)));
  return *value_;
}

const nlohmann::json& JsonView::array() const {
  if (value_ == nullptr || !value_->is_array()) refuse(fmt::format("an array is expected, not {}", shown(value_)));
  return *value_;
}

Pattern JsonView::pattern() const {
  allow_only({"String", "Regex"});
  if (const auto expression = find("Regex"); !expression.is_null()) {
    try {
      return Pattern::of_expression(expression.text());
    } catch (const PartError& error) {
      expression.refuse(error.what());
    }
  }
  const auto literal = at("String");
  if (literal.text().empty()) literal.refuse("an empty text matches everywhere");
  return Pattern::of_literal(literal.text());
}

void JsonView::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& member : object().items())
    if (std::find(keys.begin(), keys.end(), member.key()) == keys.end())
      find(member.key()).refuse("this option is not known, and might change ids");
}

void JsonView::refuse(const std::string& what) const {
  throw DataError(fmt::format("{}{} {}", path_, path_.ends_with(':') ? "" : ":", what));
}

nlohmann::json read_json(const std::string& content, const std::string& file) {
  try {
    return parse_json(content);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: {}", file, json_problem(error)));
  }
}

}  // namespace trireme::tokenizers
