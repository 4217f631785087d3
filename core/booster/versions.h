// Versions that must match between libtrireme and a plugin, as text for the preprocessor to put into a note.
#pragma once

#include <torch/version.h>

#include "core/base/version.h"

#define TRIREME_DETAIL_VERSION_TEXT2(x) #x
#define TRIREME_DETAIL_VERSION_TEXT(x) TRIREME_DETAIL_VERSION_TEXT2(x)
#if defined(__clang__)
#define TRIREME_COMPILER "clang++ " TRIREME_DETAIL_VERSION_TEXT(__clang_major__)
#else
#define TRIREME_COMPILER "g++ " TRIREME_DETAIL_VERSION_TEXT(__GNUC__)
#endif
/// Increased with every change to the headers that plugins see; scripts/check_plugin_abi.py notices a change.
#define TRIREME_ABI "39"

/// Can be overridden on the command line to build a plugin that claims another version (tests do this).
#ifndef TRIREME_NOTE_TEXT
#define TRIREME_NOTE_TEXT \
  "abi=" TRIREME_ABI ";trireme=" TRIREME_VERSION ";torch=" TORCH_VERSION ";compiler=" TRIREME_COMPILER
#endif
