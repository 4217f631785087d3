// What people read about the options: explanations on the console, and the page docs/config.md, both made from the
// field tables. Here too the small texts that messages and pages share.
#pragma once

#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/config/table.h"

namespace trireme::config {

/// A type by its index in FieldValue: "an integer", "a list of numbers".
std::string type_text(std::size_t type);
/// "at least 0 and below 1"; "" when the rules bound nothing.
std::string bounds_text(const FieldRules& rules);
/// to_toml without the quotes around a text.
std::string plain_text(const FieldValue& value);
/// Whether the field's `only` rule holds for `object` (true when it has none).
bool applies(const FieldTable& fields, const Field& field, const void* object);
/// @throws ConfigError at the first key that no row of `fields` has.
void check_keys(const Table& section, const FieldTable& fields);

/// The section of each core table, in the order of a user's file. [parallel] stands last.
std::vector<const FieldTable*> core_tables();

/// What `name` ("train.micro_batch", "train", "plugin.torch_ddp") is: its row, or the rows of its section, in lines of
/// at most `columns` (0, or more than is good to read: 100). @throws ConfigError with the nearest name.
std::string explain(const std::vector<const FieldTable*>& tables, const std::string& name, int columns = 0);

/// The rows of a section, "key = default  (what may be written)" and the text below, for `trireme plugins`.
std::string list_options(const FieldTable& table, int columns = 0);

/// docs/config.md: a heading and a table for each section.
std::string document_markdown(const std::vector<const FieldTable*>& tables);

}  // namespace trireme::config
