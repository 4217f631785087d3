// TRIREME_VECTOR_WIDTHS before a function compiles it for several vector widths, one of which is selected when the
// library is loaded. Sanitizers do not support this.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TRIREME_VECTOR_WIDTHS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TRIREME_VECTOR_WIDTHS
#endif
