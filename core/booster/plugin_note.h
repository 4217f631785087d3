// The ELF note of a plugin (contract C7): what it was built with, in a section that is read before dlopen, because a
// stale plugin can fail on an undefined symbol before any code inside it could object.
#pragma once

#include <string>

namespace trireme {

/// "abi=1;trireme=0.1.0;torch=2.11.0;compiler=g++ 12.2": the note's text.
struct PluginNote {
  std::string abi, trireme, torch, compiler;
  friend bool operator==(const PluginNote&, const PluginNote&) = default;
};

/// What this libtrireme was built with.
PluginNote own_note();
/// Reads the note of a shared object without loading it. @throws ConfigError when the file cannot be read, is no
/// ELF64 file, or has no note (it is no Trireme plugin).
PluginNote read_note(const std::string& path);

}  // namespace trireme
