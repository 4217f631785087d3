#include "datasets/tables/table_reader.h"

#include <csv.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
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
/// Where the columns are among the fields.
using ColumnPlaces = std::vector<std::size_t>;

/// What a header of one column may be; "" where nothing says so.
std::string other_separator(const RowFields& names) {
  if (names.size() == 1)
    for (const auto& [separator, name] : {std::pair{';', "semicolons"}, {'\t', "tabs"}, {',', "commas"}})
      if (names[0].find(separator) != std::string::npos)
        return fmt::format("; it has {} in its name: a .csv file has commas between columns, and a .tsv file tabs",
                           name);
  return "";
}

std::int64_t count_of(const RowFields& names, const std::string& name) {
  return std::count(names.begin(), names.end(), name);
}

std::string quoted(const std::vector<std::string>& names, const std::string& separator) {
  std::vector<std::string> out;
  for (const auto& name : names) out.push_back(fmt::format("\"{}\"", name));
  return text::join(out, separator);
}

/// The column's name in this table, if the user has not named it.
std::string usual_name(const RowFields& names, const TableColumn& column, const LineReader& in) {
  std::vector<std::string> found;
  for (const auto& usual : column.names)
    if (count_of(names, usual) > 0) found.push_back(usual);
  if (found.size() == 1) return found.front();
  fail_at_line(in.path(), in.number(),
               fmt::format("there {} {} (the columns: {}); name the column of the {} with data.{}{}",
                           found.empty() ? "is no column" : "are columns",
                           found.empty() ? quoted(column.names, " or ") : quoted(found, " and "),
                           text::first_few(names), column.key, column.key, other_separator(names)));
}

std::size_t column_place(const RowFields& names, const TableColumn& column, const LineReader& in) {
  const auto wanted = column.names.size() == 1 ? column.names.front() : usual_name(names, column, in);
  const auto count = count_of(names, wanted);
  if (count > 1)
    fail_at_line(in.path(), in.number(),
                 fmt::format("the column \"{}\", which data.{} names, occurs {} times; rename all but one", wanted,
                             column.key, count));
  if (count == 0)
    fail_at_line(in.path(), in.number(),
                 fmt::format("there is no column \"{}\", which data.{} names (the columns: {}){}{}", wanted, column.key,
                             text::first_few(names), text::did_you_mean(wanted, names), other_separator(names)));
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), wanted) - names.begin());
}

/// nullopt: the table has none of the optional columns. `strict`: no column is optional.
std::optional<ColumnPlaces> places_of(const RowFields& names, const std::vector<TableColumn>& columns,
                                      const LineReader& in, bool strict = false) {
  const auto is_absent = [&](const TableColumn& column) {
    return std::all_of(column.names.begin(), column.names.end(),
                       [&](const auto& name) { return count_of(names, name) == 0; });
  };
  const bool lacks = !strict &&
                     std::any_of(columns.begin(), columns.end(), [](const auto& column) { return column.optional; }) &&
                     std::all_of(columns.begin(), columns.end(),
                                 [&](const auto& column) { return !column.optional || is_absent(column); });
  ColumnPlaces places;
  std::map<std::size_t, std::string> keys;  // by place
  for (const auto& column : columns) {
    if (lacks && column.optional) continue;
    places.push_back(column_place(names, column, in));
    const auto [before, is_new] = keys.try_emplace(places.back(), column.key);
    if (!is_new)
      fail_at_line(in.path(), in.number(),
                   fmt::format("data.{} and data.{} name the same column, \"{}\"; name another one in one of them",
                               before->second, column.key, names[places.back()]));
  }
  return lacks ? std::nullopt : std::optional(places);
}

/// Gets the rows of a file whose first row has the names.
class HeadedTable {
 public:
  HeadedTable(const std::vector<TableColumn>& columns, const LineReader& in,
              const std::function<void(const TableRow&)>& use)
      : columns_(columns), in_(in), use_(use) {}

  void row(const RowFields& fields, std::int64_t line) {
    if (names_.empty()) {
      names_ = fields;
      places_ = places_of(names_, columns_, in_);
      return;
    }
    if (fields.size() != names_.size())
      fail_at_line(in_.path(), line,
                   fmt::format("{}, but the first row names {} ({})",
                               text::quantity(static_cast<std::int64_t>(fields.size()), "field"), names_.size(),
                               text::first_few(names_)));
    ++rows_;
    TableRow row{.line = line, .cells = {}};
    for (const auto place : *places_) row.cells.push_back({fields[place]});
    use_(row);
  }
  /// Whether rows are of use: false after the names of a table without the optional columns.
  [[nodiscard]] bool continues() const { return names_.empty() || places_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }

 private:
  const std::vector<TableColumn>& columns_;
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

/// The text of a value, or "" with `ok` = false.
std::string text_of(const nlohmann::json& value, CellType type, bool& ok) {
  if (value.is_string()) return value.get<std::string>();
  ok = ok && (type == CellType::value ? value.is_number() || value.is_boolean()
                                      : type == CellType::label && value.is_number_integer());
  return ok ? value.dump() : "";
}

/// A cell's texts: one, or those of a list.
struct JsonCell {
  std::vector<std::string> texts;
  bool is_list = false;
};

JsonCell json_cell(const nlohmann::json& value, CellType type, const std::string& name, const LineReader& in) {
  JsonCell out{{}, type == CellType::label && value.is_array()};
  bool ok = true;
  if (out.is_list)
    for (const auto& part : value) out.texts.push_back(text_of(part, type, ok));
  else
    out.texts.push_back(text_of(value, type, ok));
  if (ok) return out;
  fail_at_line(in.path(), in.number(),
               fmt::format("\"{}\" is {}; it must be {}", name, json_text(value),
                           type == CellType::text    ? "a string"
                           : type == CellType::label ? "an integer, a string, or a list of these"
                                                     : "a number, true, false, or a string"));
}

/// An object with these columns, for messages.
std::string example_of(const std::vector<TableColumn>& columns) {
  std::vector<std::string> out;
  for (const auto& column : columns)
    out.push_back(fmt::format("\"{}\": {}", column.names.back(), column.type == CellType::text ? "\"...\"" : "0"));
  return fmt::format("{{{}}}", text::join(out));
}

bool read_jsonl(LineReader& in, const std::vector<TableColumn>& columns,
                const std::function<void(const TableRow&)>& use, std::int64_t& rows) {
  const auto like = example_of(columns);
  while (const auto line = in.next_with_text()) {
    const auto object = parse_object(in, *line, like);
    const auto names = text::keys_of(object.items());
    // Only the first object decides whether the file has the optional columns.
    const auto places = places_of(names, columns, in, /*strict=*/rows > 0);
    if (!places) return false;
    std::vector<JsonCell> cells;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto& name = names[(*places)[i]];
      cells.push_back(json_cell(object.at(name), columns[i].type, name, in));
    }
    ++rows;
    TableRow row{.line = in.number(), .cells = {}};
    for (const auto& cell : cells)
      row.cells.push_back(cell.is_list ? TableCell{{}, &cell.texts} : TableCell{cell.texts.front()});
    use(row);
  }
  return true;
}

}  // namespace

bool is_table(const std::string& ending) {
  return std::find(std::begin(kTableEndings), std::end(kTableEndings), ending) != std::end(kTableEndings);
}

bool read_table(const std::string& path, const std::vector<TableColumn>& columns,
                const std::function<void(const TableRow&)>& use) {
  const auto ending = std::filesystem::path(path).extension().string();
  if (!is_table(ending))
    throw DataError(fmt::format("{}: a table ends with .tsv, .csv or .jsonl, by which its format is known", path));
  LineReader in(path);
  std::int64_t rows = 0;
  bool is_whole = true;
  if (ending == ".jsonl") {
    is_whole = read_jsonl(in, columns, use, rows);
  } else {
    HeadedTable table(columns, in, use);
    if (ending == ".tsv")
      read_tsv(in, table);
    else
      CsvParser(table).read(in);
    is_whole = table.continues();
    rows = table.rows();
  }
  if (is_whole && rows == 0) throw DataError(fmt::format("{}: has no rows of samples", path));
  return is_whole;
}

}  // namespace trireme::datasets
