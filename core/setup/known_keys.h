// The checks that a file has no section and no key that nothing reads, before its values are read. An error names the
// key's own section, or the name that is most similar. @throws ConfigError
#pragma once

#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/config/table.h"

namespace trireme::train {

/// Of all sections, with the tables of everything that they can select.
using FieldTables = std::vector<const FieldTable*>;

/// A file has only sections, and only those of section_tables() and [plugin.NAME].
void check_sections(const config::Table& root, const FieldTables& all);

/// Reports a key that the section has not, neither for the chosen owner of its further keys nor for another one. A key
/// of another section is said to be one, unless it is similar to a key of this section. In [parallel], a plugin's long
/// name of a size (pp_size) gets a suggestion of the short one.
void check_known_keys(const config::Table& section, const FieldTable& common, const FieldTable& chosen,
                      const FieldTables& all);

/// The plugin loader checks the [plugin.NAME] sections of unused plugins; this only checks the chosen one.
void check_plugin(const config::Table& root, const std::string& chosen);

}  // namespace trireme::train
