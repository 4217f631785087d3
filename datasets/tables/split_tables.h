// What kinds of data that tables list share: their keys, and the table of each split.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "datasets/held_out.h"
#include "datasets/split_files.h"
#include "datasets/tables/table_targets.h"

namespace trireme::datasets {

/// The rows of TableOptions. `samples`: "images".
template <class T>
Fields<T>& add_table_fields(Fields<T>& rows, const std::string& samples) {
  add_split_fields(rows, "tables train, validation (or valid, val, dev) and, if there is one, test", "Table");
  add_held_out_fields(rows, samples);
  return add_target_fields(rows);
}

/// The table of each split. With HeldOutOptions there is none of the validation split, else there must be one.
/// `more_endings`: of a table's name in the folder data.path, besides those of the formats.
/// @throws ConfigError, DataError
std::map<data::Split, std::string> split_tables(const TableOptions& options, const std::string& samples,
                                                const data::OpenContext& context,
                                                const std::vector<std::string>& more_endings = {});

/// Numbers the targets of all splits by the classes of the training split, and returns these. A test table that has
/// nothing to evaluate is removed, and a line says so. `tables`: structs with `targets`. @throws DataError
template <class Table>
std::vector<std::string> number_targets(std::map<data::Split, Table>& tables, const Log& log) {
  const auto& train = tables.at(data::Split::train).targets;
  auto classes = train.classes();
  if (const auto test = tables.find(data::Split::test); test != tables.end())
    if (const auto lacking = test->second.targets.lacking(classes); !lacking.empty()) {
      log.note("data: {} has no {}: there is no test split", test->second.targets.path(), lacking);
      tables.erase(test);
    }
  for (auto& [split, table] : tables) table.targets.number_by(classes, train);
  return classes;
}

}  // namespace trireme::datasets
