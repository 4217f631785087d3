// The macro that ends a plugin's source file: it exports the plugin's factory and its ELF note.
//
//   class MyPlugin : public trireme::Plugin { ... };
//   TRIREME_PLUGIN(MyPlugin)
#pragma once

#include "core/booster/plugin.h"
#include "core/booster/versions.h"

/// A handwritten ELF note: name "Trireme", type 1, text padded to 4 bytes by the assembler.
#define TRIREME_PLUGIN_NOTE(text)                                                                              \
  asm(".pushsection .note.trireme,\"a\",@note\n.balign 4\n.long 8\n.long 2f-1f\n.long 1\n.asciz \"Trireme\"\n" \
      "1: .asciz \"" text "\"\n2: .balign 4\n.popsection\n");

#define TRIREME_PLUGIN(Class)            \
  TRIREME_PLUGIN_NOTE(TRIREME_NOTE_TEXT) \
  extern "C" __attribute__((visibility("default"))) trireme::Plugin* trireme_plugin_make() { return new Class(); }
