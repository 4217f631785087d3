// TableTargets: what the rows of a table have the model learn, for every kind of data that a table lists:
// one class      the column data.label: an integer or a name
// many labels    the same column with several names in a cell (data.label_separator, or lists in .jsonl), or a column
// of
//                0 and 1 for each label (data.labels)
// numbers        the columns data.numbers
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fields.h"
#include "core/nn/data_spec.h"
#include "datasets/datasets.h"
#include "datasets/index_cache.h"
#include "datasets/tables/table_reader.h"

namespace trireme::datasets {

/// The columns of the targets. `optional`: the table may lack all of them.
std::vector<TableColumn> target_columns(const TargetOptions& options, bool optional);

class TableTargets {
 public:
  enum class Form { one_class, many_labels, numbers };

  TableTargets(std::string path, const TargetOptions& options);
  /// `cells`: of target_columns(). @throws DataError with the line and the column of a cell that is wrong
  void add(std::int64_t line, std::span<const TableCell> cells);

  [[nodiscard]] std::int64_t size() const { return rows_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// What a test table lacks to be evaluated: `column "label"`; or `labels other than "-1"`, where one label that is no
  /// class, -1 or blank, stands for labels that are not public, as in GLUE's tables. "": nothing. `classes`: of train.
  [[nodiscard]] std::string lacking(const std::vector<std::string>& classes) const;
  /// Of a training table: the columns of data.labels, else the names in its rows, integers in their order, other names
  /// in byte order; none for numbers. @throws DataError for a blank class and a number with a fraction
  [[nodiscard]] std::vector<std::string> classes() const;
  /// Numbers the labels by the classes of `train`. @throws DataError with the line of one that is no class
  void number_by(const std::vector<std::string>& classes, const TableTargets& train);

  /// The target "labels": int64 [] of one class, bool [C] of many labels, float32 [] or [K] of numbers.
  /// @pre number_by()
  [[nodiscard]] nn::SampleTensor spec() const;
  [[nodiscard]] at::Tensor label(std::int64_t row) const;
  /// The class; 0 for other targets. @pre number_by()
  [[nodiscard]] std::int64_t class_of(std::int64_t row) const;

  /// Of the targets, wherever they are in the table.
  [[nodiscard]] std::string digest() const;
  void pack(Packer& out) const;
  /// Reads what pack() has written.
  static TableTargets unpack(std::string path, const TargetOptions& options, Unpacker& in);

 private:
  struct Name {
    std::string name;
    std::int64_t line = 0;  ///< of its first sample
  };
  void add_names(std::int64_t line, const TableCell& cell);
  void add_label(std::int64_t line, std::string_view name);
  void check_name(const std::string& name, std::int64_t line) const;

  std::string path_;
  Form form_;
  std::string separator_;
  bool from_names_;                   ///< in the cells of one column, that of data.label
  std::vector<std::string> columns_;  ///< that one, or those of data.labels or data.numbers
  std::int64_t rows_ = 0;
  std::vector<Name> names_;                               ///< in the order of the file, or the columns of data.labels
  std::map<std::string, std::int32_t, std::less<>> ids_;  ///< by name, while rows are added
  std::vector<std::int32_t> labels_;                      ///< of all rows: indices into names_, then classes
  std::vector<std::int64_t> ends_;                        ///< of each row's labels, if there are many
  std::vector<float> numbers_;                            ///< of all rows
  std::int64_t classes_ = 0;
};

/// The rows of TargetOptions.
template <class T>
Fields<T>& add_target_fields(Fields<T>& table) {
  using O = TargetOptions;
  return table
      .add("label", &O::label,
           "Column of the class: an integer or a name. In .jsonl, a list of these makes them labels, of which a sample "
           "has any number. A test table without it is left out, for it has nothing to evaluate. Unset: label.")
      .add("label_separator", &O::label_separator,
           "What is between the names in a cell of the column label, of which a sample then has any number, none in a "
           "blank cell: \"|\" or \" \". Empty: the cell is one class.")
      .add("labels", &O::labels,
           "Columns of 0 and 1, or false and true, one for each label, of which a sample has any number; in place of "
           "label.")
      .add("numbers", &O::numbers, "Columns of the numbers to predict; in place of label.")
      .rule([](const O& o, const CheckedSection& section) {
        if (!o.labels.empty() && !o.numbers.empty())
          section.fail("numbers", "conflicts with labels: a sample has labels or numbers; remove one of the two");
        for (const auto& [key, names] : {std::pair{"labels", &o.labels}, {"numbers", &o.numbers}})
          if (std::set<std::string>(names->begin(), names->end()).size() != names->size())
            section.fail(key, "names a column twice; remove one of the two");
        const char* columns = !o.labels.empty() ? "labels" : !o.numbers.empty() ? "numbers" : nullptr;
        if (columns == nullptr) return;
        for (const auto& [key, set] :
             {std::pair{"label", o.label.has_value()}, {"label_separator", !o.label_separator.empty()}})
          if (set)
            section.fail(
                key,
                fmt::format("conflicts with {}, which names other columns to learn; remove one of the two", columns));
      });
}

}  // namespace trireme::datasets
