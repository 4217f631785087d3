// Extensions: shared objects that add models, data sets, tasks, optimizers, learning-rate and pipeline schedules to
// those that a file can select, sharding roles to those that a policy can name, and callbacks of a run
// (core/train/callback.h): [run] extensions = ["./libmine.so"]. A source file ends with
//
//   static void add(trireme::train::Kinds& kinds) { kinds.optimizers.add(lion()); ... }
//   TRIREME_EXTENSION(add)
//
// As with plugins, an ELF note says what the file was built with, and is read before any of its code runs.
#pragma once

#include <string>
#include <vector>

#include "core/booster/plugin_entry.h"
#include "core/setup/kinds.h"

namespace trireme::train {

/// Lets each file add its kinds. @throws ConfigError: not found, no extension, built for another version, or a name
/// that exists already
void load_extensions(const std::vector<std::string>& paths, Kinds& kinds);

}  // namespace trireme::train

#define TRIREME_EXTENSION(add)           \
  TRIREME_PLUGIN_NOTE(TRIREME_NOTE_TEXT) \
  extern "C" __attribute__((visibility("default"))) void trireme_extend(trireme::train::Kinds* kinds) { add(*kinds); }
