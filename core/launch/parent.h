// What this rank tells its parent, where that is one of our launchers: `trireme launch`, --ranks or spawn(). The parent
// prints errors, once for all ranks; it restarts, retries, and says what a stop has left unsaved. Elsewhere these
// functions do nothing. Uses nothing of LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "core/launch/rank_report.h"

namespace trireme::parent {

/// Whether there is one. Then this rank prints none of its errors.
bool listens();

/// The error that ends this rank, now or when it has done what must be done before; the first one of a process counts.
void failed(const ranks::Failure& failure);

// For spawn(): the rank has come to the call; its function has returned this text.
void reached();
void done(const std::string& result);

// About a training: see ranks::FrameKind.
void saved(std::int64_t step);
void may_fit_with(std::int64_t micro_batch);
void trains_in(const std::string& run_dir);
void takes_signals();
void stopped();
void unsaved(const std::string& text);
void trained();
/// May be called in a handler of a signal, after listens().
void late(std::int64_t seconds);

}  // namespace trireme::parent
