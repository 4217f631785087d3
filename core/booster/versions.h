// Versions that must agree between libtrireme and a plugin, as text the preprocessor can put in a note.
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
/// Raised with every change to what a plugin sees of core.
#define TRIREME_ABI "7"

/// May be overridden on the command line to build a plugin that pretends to be of another version (the tests do).
#ifndef TRIREME_NOTE_TEXT
#define TRIREME_NOTE_TEXT \
  "abi=" TRIREME_ABI ";trireme=" TRIREME_VERSION ";torch=" TORCH_VERSION ";compiler=" TRIREME_COMPILER
#endif
