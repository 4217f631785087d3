// Reads the rows of a table by the names of its columns. The file's ending says its format:
// .tsv    columns between tabs, without quotes, as in GLUE's files; the first line has the names
// .csv    RFC 4180: quoted fields may hold commas, line breaks and doubled quotes; the first row has the names
// .jsonl  an object a line
// Lines without any character are passed over.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::datasets {

/// What a column holds, which matters in .jsonl, whose values have types.
enum class CellType {
  text,   ///< a string
  label,  ///< a string, an integer, or a list of these
  value,  ///< a number, a boolean, or a string
};

/// A column that is read.
struct TableColumn {
  std::string key;                 ///< of [data], which names it
  std::vector<std::string> names;  ///< the table has one of these, and only one; examples have the last
  CellType type = CellType::text;
  /// A table may lack all optional columns. It is not read then.
  bool optional = false;
};

struct TableCell {
  std::string_view text;
  const std::vector<std::string>* list = nullptr;  ///< of a list in .jsonl, which has no text
};

/// Valid during the call that gets it.
struct TableRow {
  std::int64_t line = 0;         ///< the row's first, from 1
  std::vector<TableCell> cells;  ///< of the columns that are read, in their order
};

/// Calls use(row) for each row. @returns false, without a call, for a table without the optional columns.
/// @throws DataError that names file and line: an unknown format or column, a row with another number of fields than
/// the first one, an unclosed quote, invalid JSON, no rows
bool read_table(const std::string& path, const std::vector<TableColumn>& columns,
                const std::function<void(const TableRow&)>& use);

/// The endings of the formats.
inline constexpr const char* kTableEndings[] = {".tsv", ".csv", ".jsonl"};
/// Whether a file with this ending (".csv") is one of the formats.
bool is_table(const std::string& ending);

}  // namespace trireme::datasets
