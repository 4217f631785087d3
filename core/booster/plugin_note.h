// The ELF note of a plugin (contract C7) says what it was built with. It is read before dlopen(), because an outdated
// plugin can fail on an undefined symbol before any of its code could check versions.
#pragma once

#include <string>

namespace trireme {

/// The text of the note: "abi=1;trireme=0.1.0;torch=2.11.0;compiler=g++ 12.2".
struct PluginNote {
  std::string abi, trireme, torch, compiler;
  friend bool operator==(const PluginNote&, const PluginNote&) = default;
};

/// The versions that this libtrireme was built with.
PluginNote own_note();
/// Reads the note of a shared object without loading it. @throws ConfigError when the file cannot be read, is not an
/// ELF64 file, or has no note (it is not a Trireme plugin).
PluginNote read_note(const std::string& path);

}  // namespace trireme
