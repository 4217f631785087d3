// Reads the rows of a table of texts by the names of its columns. The file's ending says its format:
// .tsv    columns between tabs, without quotes, as in GLUE's files; the first line has the names
// .csv    RFC 4180: quoted fields may hold commas, line breaks and doubled quotes; the first row has the names
// .jsonl  an object a line; a label is a string or an integer
// Lines without any character are passed over.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::datasets {

struct TableColumns {
  std::string text = "";  ///< "": "sentence" or "text", whichever the file has
  std::string pair = "";  ///< of the second text; "": there is none
  std::string label = "label";
};

/// Valid during the call that gets it.
struct TableRow {
  std::int64_t line = 0;  ///< the row's first, from 1
  std::string_view text;
  std::optional<std::string_view> pair;
  std::string_view label;
};

enum class Labels { required, optional };

/// Calls use(row) for each row. @returns false, without a call, for a file without labels, if they are optional.
/// @throws DataError that names file and line: an unknown format or column, a row with another number of fields than
/// the first one, an unclosed quote, invalid JSON, no rows
bool read_table(const std::string& path, const TableColumns& columns, Labels labels,
                const std::function<void(const TableRow&)>& use);

/// The endings of the formats.
inline constexpr const char* kTableEndings[] = {".tsv", ".csv", ".jsonl"};
/// Whether a file with this ending (".csv") is one of the formats.
bool is_table(const std::string& ending);

}  // namespace trireme::datasets
