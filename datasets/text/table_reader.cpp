#include "datasets/text/table_reader.h"

#include <csv.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {
namespace {

using RowFields = std::vector<std::string>;

/// Where a table's columns are among the fields.
struct ColumnPlaces {
  std::size_t text = 0;
  std::optional<std::size_t> pair, label;
};

/// What a header of one column may be; "" where nothing says so.
std::string other_separator(const RowFields& names) {
  if (names.size() == 1)
    for (const auto& [separator, name] : {std::pair{';', "semicolons"}, {'\t', "tabs"}, {',', "commas"}})
      if (names[0].find(separator) != std::string::npos)
        return fmt::format("; it has {} in its name: a .csv file has commas between columns, and a .tsv file tabs",
                           name);
  return "";
}

std::size_t column_place(const RowFields& names, const std::string& wanted, const char* key, const LineReader& in) {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (std::count(names.begin(), names.end(), wanted) > 1)
    fail_at_line(in.path(), in.number(),
                 fmt::format("the column \"{}\", which data.{} names, occurs {} times; rename all but one", wanted, key,
                             std::count(names.begin(), names.end(), wanted)));
  if (found == names.end())
    fail_at_line(in.path(), in.number(),
                 fmt::format("there is no column \"{}\", which data.{} names (the columns: {}){}{}", wanted, key,
                             text::first_few(names), text::did_you_mean(wanted, names), other_separator(names)));
  return static_cast<std::size_t>(found - names.begin());
}

/// The column of the text, if the user has not named it.
std::string usual_text_column(const RowFields& names, const LineReader& in) {
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (has("sentence") != has("text")) return has("text") ? "text" : "sentence";
  fail_at_line(in.path(), in.number(),
               fmt::format("there {} \"sentence\" {} \"text\" (the columns: {}); name the column of the text with "
                           "data.text{}",
                           has("text") ? "are columns" : "is no column", has("text") ? "and" : "or",
                           text::first_few(names), other_separator(names)));
}

/// nullopt: the table has no labels, and they are optional.
std::optional<ColumnPlaces> places_of(const RowFields& names, const TableColumns& columns, Labels labels,
                                      const LineReader& in) {
  ColumnPlaces places;
  places.text = column_place(names, columns.text.empty() ? usual_text_column(names, in) : columns.text, "text", in);
  if (!columns.pair.empty()) places.pair = column_place(names, columns.pair, "text_pair", in);
  if (labels == Labels::optional && std::find(names.begin(), names.end(), columns.label) == names.end())
    return std::nullopt;
  places.label = column_place(names, columns.label, "label", in);
  return places;
}

/// Gets the rows of a file whose first row has the names.
class HeadedTable {
 public:
  HeadedTable(const TableColumns& columns, Labels labels, const LineReader& in,
              const std::function<void(const TableRow&)>& use)
      : columns_(columns), labels_(labels), in_(in), use_(use) {}

  void row(const RowFields& fields, std::int64_t line) {
    if (names_.empty()) {
      names_ = fields;
      places_ = places_of(names_, columns_, labels_, in_);
      return;
    }
    if (fields.size() != names_.size())
      fail_at_line(in_.path(), line,
                   fmt::format("{}, but the first row names {} ({})",
                               text::quantity(static_cast<std::int64_t>(fields.size()), "field"), names_.size(),
                               text::first_few(names_)));
    ++rows_;
    TableRow row{.line = line, .text = fields[places_->text], .pair = std::nullopt, .label = fields[*places_->label]};
    if (places_->pair) row.pair = fields[*places_->pair];
    use_(row);
  }
  /// Whether rows are of use: false after the names of a table without labels.
  [[nodiscard]] bool continues() const { return names_.empty() || places_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }

 private:
  const TableColumns& columns_;
  Labels labels_;
  const LineReader& in_;
  const std::function<void(const TableRow&)>& use_;
  RowFields names_;
  std::optional<ColumnPlaces> places_;
  std::int64_t rows_ = 0;
};

void read_tsv(LineReader& in, HeadedTable& table) {
  while (const auto line = table.continues() ? in.next() : std::nullopt)
    if (!line->empty()) table.row(text::split(*line, '\t'), in.number());
}

/// libcsv, which gets the file line by line, so that rows have line numbers.
class CsvParser {
 public:
  explicit CsvParser(HeadedTable& table) : table_(table) {
    TRIREME_CHECK(csv_init(&parser_, CSV_STRICT | CSV_STRICT_FINI) == 0, "csv_init() failed");
    csv_set_space_func(&parser_, [](unsigned char) { return 0; });  // spaces around a field belong to it
  }
  ~CsvParser() { csv_free(&parser_); }
  CsvParser(const CsvParser&) = delete;
  CsvParser& operator=(const CsvParser&) = delete;

  void read(LineReader& in) {
    while (const auto line = table_.continues() ? in.next() : std::nullopt) {
      if (parser_.quoted == 0) first_line_ = in.number();  // else the line continues a quoted field
      text_.assign(*line) += '\n';
      if (csv_parse(&parser_, text_.data(), text_.size(), on_field, on_row, this) != text_.size())
        fail_at_line(in.path(), in.number(),
                     "a quote within a field; a field with quotes is itself in quotes, and each of its quotes is "
                     "doubled");
      if (!std::exchange(ended_, false)) continue;
      table_.row(fields_, first_line_);
      fields_.clear();
    }
    if (table_.continues() && csv_fini(&parser_, on_field, on_row, this) != 0)
      fail_at_line(in.path(), first_line_, "a quoted field that begins in this row has no end");
  }

 private:
  static void on_field(void* bytes, std::size_t size, void* self) {
    static_cast<CsvParser*>(self)->fields_.emplace_back(static_cast<const char*>(bytes), size);
  }
  static void on_row(int /*end*/, void* self) { static_cast<CsvParser*>(self)->ended_ = true; }

  HeadedTable& table_;
  csv_parser parser_{};
  std::string text_;
  RowFields fields_;
  std::int64_t first_line_ = 1;
  bool ended_ = false;
};

/// The text of an object's value: of a label, integers too.
std::string json_field(const nlohmann::json& object, const std::string& name, bool label, const LineReader& in) {
  const auto& value = object.at(name);
  if (value.is_string()) return value.get<std::string>();
  if (label && value.is_number_integer()) return value.dump();
  fail_at_line(in.path(), in.number(),
               fmt::format("\"{}\" is {}; it must be {}", name, json_text(value),
                           label ? "an integer or a string" : "a string"));
}

bool read_jsonl(LineReader& in, const TableColumns& columns, Labels labels,
                const std::function<void(const TableRow&)>& use, std::int64_t& rows) {
  RowFields names, fields(3);
  while (const auto line = in.next()) {
    if (line->find_first_not_of(" \t") == line->npos) continue;
    const auto object = parse_object(in, *line, R"({"text": "...", "label": 0})");
    names.clear();
    for (const auto& [name, value] : object.items()) names.push_back(name);
    // Only the first object decides whether the file has labels.
    const auto places = places_of(names, columns, rows == 0 ? labels : Labels::required, in);
    if (!places) return false;
    fields[0] = json_field(object, names[places->text], false, in);
    if (places->pair) fields[1] = json_field(object, names[*places->pair], false, in);
    fields[2] = json_field(object, names[*places->label], true, in);
    ++rows;
    TableRow row{.line = in.number(), .text = fields[0], .pair = std::nullopt, .label = fields[2]};
    if (places->pair) row.pair = fields[1];
    use(row);
  }
  return true;
}

}  // namespace

bool is_table(const std::string& ending) {
  return std::find(std::begin(kTableEndings), std::end(kTableEndings), ending) != std::end(kTableEndings);
}

bool read_table(const std::string& path, const TableColumns& columns, Labels labels,
                const std::function<void(const TableRow&)>& use) {
  const auto ending = std::filesystem::path(path).extension().string();
  if (!is_table(ending))
    throw DataError(
        fmt::format("{}: a table of texts ends with .tsv, .csv or .jsonl, by which its format is known", path));
  LineReader in(path);
  std::int64_t rows = 0;
  bool has_labels = true;
  if (ending == ".jsonl") {
    has_labels = read_jsonl(in, columns, labels, use, rows);
  } else {
    HeadedTable table(columns, labels, in, use);
    if (ending == ".tsv")
      read_tsv(in, table);
    else
      CsvParser(table).read(in);
    has_labels = table.continues();
    rows = table.rows();
  }
  if (has_labels && rows == 0) throw DataError(fmt::format("{}: has no rows of samples", path));
  return has_labels;
}

}  // namespace trireme::datasets
