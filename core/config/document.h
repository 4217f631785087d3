// Texts about the options for users: explanations on the console and the page docs/config.md, both generated from the
// field tables. Also the small texts that messages and pages share.
#pragma once

#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/config/table.h"

namespace trireme::config {

/// A type by its index in FieldValue: "an integer", "a list of numbers".
std::string type_text(std::size_t type);
/// The types that a field takes: "an integer or a list of integers".
std::string type_text(const Field& field);
/// The values that a field takes: "an integer, at least 1".
std::string allowed_text(const Field& field);
/// Like to_toml(), but without quotes around a string.
std::string plain_text(const FieldValue& value);
/// Whether the field's `only` rule holds for `object` (true if it has none).
bool applies(const FieldTable& fields, const Field& field, const void* object);
/// @throws ConfigError at the first key that `fields` does not contain.
void check_keys(const Table& section, const FieldTable& fields);

/// Explains `name` ("train.micro_batch", "train", "plugin.torch_ddp"): its row, or the rows of its section, in lines of
/// at most `columns` (100 if that is 0 or larger). @throws ConfigError with the nearest name.
std::string explain(const std::vector<const FieldTable*>& tables, const std::string& name, int columns = 0);

/// The rows of a section, "key = default  (allowed values)" with the description below, for `trireme plugins`.
std::string list_options(const FieldTable& table, int columns = 0);

/// docs/config.md: a heading and a table for each section.
std::string document_markdown(const std::vector<const FieldTable*>& tables);

}  // namespace trireme::config
