// Trireme's version; CMake reads it from here.
#pragma once

#define TRIREME_VERSION "0.1.0"
