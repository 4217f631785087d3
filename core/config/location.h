// Adds the location in the user's file to errors from layers that do not know the file.
#pragma once

#include <functional>

#include "core/config/table.h"

namespace trireme::config {

/// Runs `check`. An error of it that begins with a key ("optimizer.freeze: ...", or "optimizer.group[2].parameters:
/// ..." for the second [[optimizer.group]]) is rethrown with the location of that key in `root`. @throws any exception
/// of `check`
void with_location(const Table& root, const std::function<void()>& check);

}  // namespace trireme::config
