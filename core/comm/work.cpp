#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>

#include "core/base/error.h"
#include "core/base/trace.h"
#include "core/comm/group_state.h"

namespace trireme::comm {
namespace {

std::atomic<std::int64_t> waited_ns{0};

}  // namespace

std::chrono::nanoseconds time_in_waits() { return std::chrono::nanoseconds(waited_ns.load(std::memory_order_relaxed)); }

Work::Work() = default;
Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work waits_for_the_old(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Work::~Work() {
  // While an error unwinds, the other ranks may never answer: the operation keeps its tensors and continues, or is
  // dropped.
  if (std::uncaught_exceptions() > 0) return;
  try {
    wait();
  } catch (...) {
    // A destructor cannot throw; the group's next operation fails for the same reason.
  }
}

void Work::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  const auto timed = c10::make_scope_exit([begin = std::chrono::steady_clock::now()] {
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begin;
    waited_ns.fetch_add(time.count(), std::memory_order_relaxed);
  });
  try {
    for (auto& work : state->works)
      if (work) work->wait();
    for (auto& [from, to] : state->copy_back) to.copy_(from, /*non_blocking=*/to.is_cuda());
    if (state->start_time > 0) {
      trace::synchronize();  // on a GPU, wait() only orders the stream
      trace::add(std::move(state->track), std::move(state->span_name), state->start_time, trace::now());
    }
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw CommError(fmt::format("{}: {}", state->what, error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw CommError(fmt::format("{}: {}", state->what, error.what()));
  }
}

bool Work::done() const {
  return !state_ || std::all_of(state_->works.begin(), state_->works.end(),
                                [](const auto& work) { return !work || work->isCompleted(); });
}

}  // namespace trireme::comm
