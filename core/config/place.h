// The place of a key that something below the configuration has complained of.
#pragma once

#include <functional>

#include "core/config/table.h"

namespace trireme::config {

/// Runs `check`. Layers below know no file: an error of theirs that begins with a key, "optimizer.freeze: ...", gets
/// its place in `root`. @throws what check throws
void with_place(const Table& root, const std::function<void()>& check);

}  // namespace trireme::config
