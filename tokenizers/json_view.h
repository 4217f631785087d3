// JsonView: a place in a JSON file. Its errors name the file and the path to it: "tokenizer.json: model.merges[3]:
// ...".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/pattern.h"

namespace trireme::tokenizers {

/// Functions throw DataError when the value is not what they ask for, or is nested too deeply.
class JsonView {
 public:
  /// `root` outlives the view.
  JsonView(const nlohmann::json& root, const std::string& file) : value_(&root), path_(file + ":") {}

  [[nodiscard]] bool is_null() const { return value_ == nullptr || value_->is_null(); }
  [[nodiscard]] bool is_array() const { return value_ != nullptr && value_->is_array(); }
  [[nodiscard]] bool is_object() const { return value_ != nullptr && value_->is_object(); }
  /// The member, or a view of nothing, which is null.
  [[nodiscard]] JsonView find(const std::string& key) const;
  /// The member, which must be there.
  [[nodiscard]] JsonView at(const std::string& key) const;
  [[nodiscard]] std::vector<JsonView> elements() const;
  [[nodiscard]] JsonView element(std::size_t i) const;

  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] std::string text_or(const std::string& otherwise) const;
  [[nodiscard]] bool flag() const;
  [[nodiscard]] bool flag_or(bool otherwise) const { return is_null() ? otherwise : flag(); }
  /// From 0 to `most`.
  [[nodiscard]] std::int64_t number(std::int64_t most) const;
  /// Any finite number.
  [[nodiscard]] double real() const;
  /// The one character of a text.
  [[nodiscard]] const std::string& character() const;
  [[nodiscard]] const nlohmann::json& object() const;
  [[nodiscard]] const nlohmann::json& array() const;
  /// {"String": "..."} or {"Regex": "..."}.
  [[nodiscard]] Pattern pattern() const;

  /// Refuses an object with other members: one that is not known might change ids.
  void allow_only(std::initializer_list<std::string_view> keys) const;
  /// @throws DataError
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  /// Of a member of `parent`.
  JsonView(const nlohmann::json* value, std::string path, const JsonView& parent);

  const nlohmann::json* value_;  ///< null: there is no such member
  std::string path_;             ///< the file's, and the keys that lead here
  int depth_ = 0;                ///< below the file's root: readers of parts in parts call themselves
};

/// The file's JSON. @throws DataError with the line where it is none
nlohmann::json read_json(const std::string& content, const std::string& file);

}  // namespace trireme::tokenizers
