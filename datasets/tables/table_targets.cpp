#include "datasets/tables/table_targets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/text.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {
namespace {

constexpr const char* kLabelColumn = "label";

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::optional<double> number_of(std::string_view text) {
  text = trimmed(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// Whether this is a number with a fraction, as regression has: "3.8".
bool has_fraction(const std::string& name) { return name.find('.') != name.npos && number_of(name); }

/// 0 or 1, also as Python's and JSON's booleans and as a floating-point number.
std::optional<bool> flag_in(std::string_view text) {
  std::string lower(trimmed(text));
  for (auto& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (lower == "true" || lower == "false") return lower == "true";
  const auto number = number_of(lower);
  return number == 0 || number == 1 ? std::optional(number == 1) : std::nullopt;
}

[[noreturn]] void fail_at_cell(const std::string& path, std::int64_t line, const std::string& column,
                               std::string_view text, const std::string& what) {
  fail_at_line(path, line, fmt::format("column \"{}\": \"{}\" is {}", column, text, what));
}

}  // namespace

std::vector<TableColumn> target_columns(const TargetOptions& options, bool optional) {
  std::vector<TableColumn> out;
  for (const auto& name : options.labels) out.push_back({"labels", {name}, CellType::value, optional});
  for (const auto& name : options.numbers) out.push_back({"numbers", {name}, CellType::value, optional});
  if (out.empty()) out.push_back({"label", {options.label.value_or(kLabelColumn)}, CellType::label, optional});
  return out;
}

TableTargets::TableTargets(std::string path, const TargetOptions& options)
    : path_(std::move(path)),
      form_(!options.numbers.empty()                                    ? Form::numbers
            : options.labels.empty() && options.label_separator.empty() ? Form::one_class
                                                                        : Form::many_labels),
      separator_(options.label_separator),
      from_names_(options.labels.empty() && options.numbers.empty()) {
  for (const auto& column : target_columns(options, false)) columns_.push_back(column.names.front());
  for (const auto& column : options.labels) names_.push_back({column, 1});
}

void TableTargets::add_label(std::int64_t line, std::string_view name) {
  auto found = ids_.find(name);
  if (found == ids_.end()) {
    found = ids_.emplace(name, static_cast<std::int32_t>(names_.size())).first;
    names_.push_back({std::string(name), line});
  }
  labels_.push_back(found->second);
}

/// The labels of a cell of data.label.
void TableTargets::add_names(std::int64_t line, const TableCell& cell) {
  const bool is_list = cell.list != nullptr;
  if (separator_.empty()) {
    if (rows_ == 0 && is_list) form_ = Form::many_labels;
    if (is_list != (form_ == Form::many_labels))
      fail_at_line(path_, line,
                   fmt::format("\"{}\" is {} list, unlike in the rows before; write a list in each row, or in none",
                               columns_.front(), is_list ? "a" : "no"));
  }
  if (is_list) {
    for (const auto& name : *cell.list) add_label(line, name);
  } else if (form_ == Form::one_class) {
    const auto name = trimmed(cell.text);
    add_label(line, name.empty() ? cell.text : name);
  } else {
    for (auto left = cell.text; !left.empty();) {
      const auto end = std::min(left.find(separator_), left.size());
      if (const auto name = trimmed(left.substr(0, end)); !name.empty()) add_label(line, name);
      left.remove_prefix(std::min(end + separator_.size(), left.size()));
    }
  }
}

void TableTargets::add(std::int64_t line, std::span<const TableCell> cells) {
  if (from_names_) add_names(line, cells.front());
  for (std::size_t i = 0; !from_names_ && i < columns_.size(); ++i) {
    const auto text = cells[i].text;
    if (form_ == Form::numbers) {
      const auto number = number_of(text);
      numbers_.push_back(static_cast<float>(number.value_or(NAN)));
      if (!std::isfinite(numbers_.back()))
        fail_at_cell(path_, line, columns_[i], text,
                     "no finite number, as a target of data.numbers must be; correct the cell, or remove the row");
      continue;
    }
    const auto flag = flag_in(text);
    if (!flag)
      fail_at_cell(path_, line, columns_[i], text,
                   "neither 0 nor 1 (or false or true), as data.labels needs; correct the cell, or remove the row");
    if (*flag) labels_.push_back(static_cast<std::int32_t>(i));
  }
  if (form_ == Form::many_labels) ends_.push_back(static_cast<std::int64_t>(labels_.size()));
  ++rows_;
}

std::string TableTargets::lacking(const std::vector<std::string>& classes) const {
  if (rows_ == 0) return fmt::format("column \"{}\"", columns_.front());
  if (form_ != Form::one_class || names_.size() != 1) return "";
  const auto& name = names_.front().name;
  const bool is_unknown = name == "-1" && std::find(classes.begin(), classes.end(), name) == classes.end();
  return trimmed(name).empty() || is_unknown ? fmt::format("labels other than \"{}\"", name) : "";
}

std::vector<std::string> TableTargets::classes() const {
  std::vector<std::string> out;
  bool integers = true;
  for (const auto& [name, line] : names_) {
    if (from_names_) check_name(name, line);
    integers = integers && text::integer(name);
    out.push_back(name);
  }
  if (form_ == Form::many_labels && out.empty())
    throw DataError(fmt::format("{}: no row has a label; at least one label must be in train to be learned", path_));
  if (from_names_)
    std::sort(out.begin(), out.end(), [&](const std::string& a, const std::string& b) {
      return integers ? *text::integer(a) < *text::integer(b) : a < b;
    });
  return out;
}

/// @throws DataError for a label that is blank, or a number with a fraction
void TableTargets::check_name(const std::string& name, std::int64_t line) const {
  if (trimmed(name).empty()) fail_at_line(path_, line, "the label is blank; write the class there, or remove the row");
  if (has_fraction(name))
    fail_at_line(path_, line,
                 fmt::format("the label {} is a number with a fraction; a class is an integer or a name; to predict "
                             "numbers, name their columns with data.numbers",
                             name));
}

void TableTargets::number_by(const std::vector<std::string>& classes, const TableTargets& train) {
  if (form_ != train.form_)
    throw DataError(fmt::format("{}: \"{}\" is {} here, unlike in {}; write it alike in all tables", path_,
                                columns_.front(), form_ == Form::many_labels ? "a list" : "no list", train.path_));
  std::vector<std::int32_t> class_of_name;
  for (const auto& [name, line] : names_) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
      check_name(name, line);
      fail_at_line(path_, line,
                   fmt::format("the label \"{}\" is not in {} (its labels: {}); a class must be in train to be "
                               "learned{}",
                               name, train.path_ == path_ ? "the train split" : train.path_, text::first_few(classes),
                               text::did_you_mean(name, classes)));
    }
    class_of_name.push_back(static_cast<std::int32_t>(found - classes.begin()));
  }
  for (auto& label : labels_) label = class_of_name[static_cast<std::size_t>(label)];
  classes_ = static_cast<std::int64_t>(classes.size());
}

nn::SampleTensor TableTargets::spec() const {
  if (form_ == Form::one_class) return {nn::kLabels, at::kLong, {}};
  if (form_ == Form::many_labels) return {nn::kLabels, at::kBool, {classes_}};
  const auto count = static_cast<std::int64_t>(columns_.size());
  return {nn::kLabels, at::kFloat, count == 1 ? std::vector<std::int64_t>() : std::vector{count}};
}

std::int64_t TableTargets::class_of(std::int64_t row) const {
  return form_ == Form::one_class ? labels_.at(static_cast<std::size_t>(row)) : 0;
}

at::Tensor TableTargets::label(std::int64_t row) const {
  if (form_ == Form::one_class) return at::scalar_tensor(class_of(row), at::kLong);
  const auto like = spec();
  auto out = at::zeros(like.shape, like.dtype);
  const auto at = static_cast<std::size_t>(row);
  if (form_ == Form::numbers) {
    std::copy_n(numbers_.begin() + row * out.numel(), out.numel(), out.mutable_data_ptr<float>());
    return out;
  }
  auto* flags = out.mutable_data_ptr<bool>();
  for (auto i = at == 0 ? 0 : ends_.at(at - 1); i < ends_.at(at); ++i)
    flags[labels_[static_cast<std::size_t>(i)]] = true;
  return out;
}

std::string TableTargets::digest() const {
  std::uint32_t values = 0, names = 0;
  const auto add = [](std::uint32_t& sum, const auto& of) {
    sum = crc32(sum, of.data(), of.size() * sizeof(of.front()));
  };
  add(values, labels_);
  add(values, ends_);
  add(values, numbers_);
  for (const auto& [name, line] : names_) add(names, name + '\n');
  return fmt::format("{:08x}{:08x}", values, names);
}

void TableTargets::pack(Packer& out) const {
  out.add(static_cast<std::int64_t>(form_));
  out.add(rows_);
  out.add(static_cast<std::int64_t>(names_.size()));
  for (const auto& [name, line] : names_) {
    out.add(name);
    out.add(line);
  }
  out.add_values(labels_);
  out.add_values(ends_);
  out.add_values(numbers_);
}

TableTargets TableTargets::unpack(std::string path, const TargetOptions& options, Unpacker& in) {
  TableTargets out(std::move(path), options);
  out.form_ = static_cast<Form>(in.number());
  out.rows_ = in.number();
  out.names_.clear();
  for (auto left = in.number(); left > 0; --left) {
    auto name = in.text();
    out.names_.push_back({std::move(name), in.number()});
  }
  out.labels_ = in.values<std::int32_t>();
  out.ends_ = in.values<std::int64_t>();
  out.numbers_ = in.values<float>();
  return out;
}

}  // namespace trireme::datasets
