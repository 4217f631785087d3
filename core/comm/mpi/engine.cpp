#include "core/comm/mpi/engine.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

#include "core/base/error.h"

namespace trireme::comm::mpi {
namespace {

using std::chrono::microseconds;

// A waiting thread polls without pause for some microseconds, then yields its core between polls, and sleeps after a
// long time without progress, when the rank it waits for must be busy with something else.
constexpr int kEagerLooks = 32;
constexpr auto kPatience = std::chrono::milliseconds(20);
constexpr microseconds kPatientSleep{50};
// The background thread polls without pause for a short time after progress (the next message of the exchange is
// probably near), then sleeps between polls, longer and longer while nothing progresses.
constexpr microseconds kAlert{30};
constexpr microseconds kShortestSleep{20};
constexpr microseconds kLongestSleep{500};
constexpr unsigned kDeadlineEvery = 256;  // polls between two readings of the clock

}  // namespace

Engine::Engine() : thread_([this] { background(); }) {}

Engine::~Engine() { stop(); }

void Engine::start(const c10::intrusive_ptr<Operation>& operation) {
  if (stopping_) throw CommError(fmt::format("{}: the World has already been destroyed", operation->text()));
  outstanding_.fetch_add(1);
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(operation);
    queued_.store(true, std::memory_order_release);
  }
  if (!operation->program_.asynchronous) return;  // its waiter follows at once
  try_poll();                                     // posts it now, if the lock is free
  wake();
}

void Engine::wake() {
  if (!idle_.load() || outstanding_.load() == 0) return;
  const std::lock_guard lock(sleep_mutex_);
  wake_.notify_one();
}

void Engine::take_queue() {
  const std::lock_guard lock(queue_mutex_);
  for (auto& operation : queue_) {
    const auto& channel = *operation->channel_;
    operation->queue_ = &queues_.enter(&channel, operation->program_.tag, channel.size);
    active_.push_back(std::move(operation));
  }
  queue_.clear();
  queued_.store(false, std::memory_order_release);
}

bool Engine::poll(Operations& finished) {
  if (queued_.load(std::memory_order_acquire)) take_queue();
  ++polls_;
  bool moved = false;
  for (std::size_t i = 0; i < active_.size();) {
    auto& operation = *active_[i];
    auto step = Operation::Step::waiting;
    operation.queue_->begin(polls_);
    try {
      step = operation.advance();
    } catch (...) {
      operation.fail(std::current_exception());
      if (operation.has_requests()) broken_.push_back(active_[i]);
      step = Operation::Step::finished;
    }
    moved |= step != Operation::Step::waiting;
    if (step == Operation::Step::finished)
      retire(i, finished);
    else
      ++i;
  }
  if (polls_ % kDeadlineEvery == 0) check_deadlines(finished);
  return moved;
}

void Engine::retire(std::size_t index, Operations& finished) {
  auto& operation = *active_[index];
  queues_.leave(operation.channel_.get(), operation.program_.tag);
  operation.queue_ = nullptr;
  finished.push_back(std::move(active_[index]));
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));  // keeps the operations in the order of their
                                                                        // starts
}

void Engine::check_deadlines(Operations& finished) {
  const auto now = Clock::now();
  for (std::size_t i = 0; i < active_.size();) {
    auto& operation = *active_[i];
    if (now < operation.deadline_) {
      ++i;
      continue;
    }
    operation.fail(std::make_exception_ptr(CommError(fmt::format(
        "{}: nothing received from {} within {:.3g} s; that rank is slow, stuck or gone, or made other calls",
        operation.text(), operation.pending_peers(), static_cast<double>(operation.program_.timeout.count()) / 1000))));
    if (operation.has_requests()) broken_.push_back(active_[i]);
    retire(i, finished);
  }
}

bool Engine::try_poll() {
  Operations finished;
  bool moved = false;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    moved = poll(finished);
  }
  // Copies back and callbacks of futures may take long or start operations, so they run without the lock.
  for (const auto& operation : finished) {
    operation->complete();
    outstanding_.fetch_sub(1);
  }
  return moved;
}

bool Engine::drive(const Operation& operation, std::optional<Clock::time_point> until) {
  if (operation.done()) return true;
  drivers_.fetch_add(1);
  int looks = 0;
  bool patient = false;
  Clock::time_point silent_since;
  while (!operation.done()) {
    if (try_poll()) {
      looks = 0;
      patient = false;
      continue;
    }
    if (++looks < kEagerLooks) continue;
    if (patient)
      std::this_thread::sleep_for(kPatientSleep);
    else
      std::this_thread::yield();
    if (looks % kEagerLooks != 0) continue;
    const auto now = Clock::now();
    if (looks == kEagerLooks) silent_since = now;
    patient = now - silent_since > kPatience;
    if (until && now >= *until) break;
  }
  drivers_.fetch_sub(1);
  if (operation.done()) return true;
  wake();  // the background thread continues it
  return false;
}

void Engine::use(c10::Device device) {
  if (device.is_cuda()) use_device_ = device.index();
}

void Engine::background() {
  pthread_setname_np(pthread_self(), "trireme-comm");
  prctl(PR_SET_TIMERSLACK, 1);  // in ns: the kernel's default of 50 us would triple the short sleeps
  auto pause = kShortestSleep;
  auto last_move = Clock::now();
  while (!stopping_) {
    if (outstanding_.load() == 0) {
      std::unique_lock lock(sleep_mutex_);
      idle_.store(true);
      wake_.wait(lock, [this] { return stopping_ || outstanding_.load() > 0; });
      idle_.store(false);
      pause = kShortestSleep;
      last_move = Clock::now();
      continue;
    }
    if (drivers_.load() == 0) {
      if (const int device = use_device_.exchange(-1); device >= 0)
        c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice({c10::kCUDA, static_cast<c10::DeviceIndex>(device)});
      const bool moved = try_poll();
      const auto now = Clock::now();
      if (moved) {
        last_move = now;
        pause = kShortestSleep;
      }
      if (now - last_move < kAlert) continue;
    }
    // Does not wait on the condition variable: a start needs no notification while this thread polls.
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + pause / 4, kLongestSleep);
  }
}

void Engine::stop() {
  if (stopping_.exchange(true)) return;
  {
    const std::lock_guard lock(sleep_mutex_);
    wake_.notify_one();
  }
  thread_.join();
  Operations left;
  {
    const std::scoped_lock lock(mutex_, queue_mutex_);
    left = active_;
    left.insert(left.end(), queue_.begin(), queue_.end());
    for (const auto& operation : left)
      operation->fail(std::make_exception_ptr(
          CommError(fmt::format("{}: the World was destroyed before this was complete", operation->text()))));
    broken_.insert(broken_.end(), left.begin(), left.end());
    active_.clear();
    queue_.clear();
  }
  for (const auto& operation : left) operation->complete();
}

void Engine::release() { broken_.clear(); }

}  // namespace trireme::comm::mpi
