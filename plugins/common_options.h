// What the tables of all built-in plugins share: texts of keys that each has, and keys that none has.
#pragma once

#include "core/base/fields.h"

namespace trireme::plugins {

inline constexpr const char* kBroadcastBuffersText =
    "Give all ranks the first one's buffers (such as running statistics) at the end of each step. false: each rank "
    "keeps its own, and checkpoints hold the first one's.";

inline constexpr const char* kCheckReductionText =
    "Compare the reduced gradients of all ranks after each backward pass, and stop if they differ; costs one more pass "
    "over all gradients.";

/// Keys of other tools that no plugin has.
inline constexpr const char* kNoFp8Text = "fp8 is not supported; the narrowest precision is bf16";
template <class O>
void add_absent_fp8(Fields<O>& table) {
  table.instead("fp8_communication", kNoFp8Text).instead("use_fp8", kNoFp8Text);
}

}  // namespace trireme::plugins
