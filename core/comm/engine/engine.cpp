#include "core/comm/engine/engine.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

#include "core/base/error.h"

namespace trireme::comm::engine {
namespace {

using std::chrono::microseconds;

// A waiting thread polls without pause for some microseconds, then yields its core between polls. Where no peer can
// wake it, it sleeps between polls after a long time without progress, when the rank it waits for must be busy with
// something else.
constexpr int kEagerLooks = 32;
constexpr auto kPatience = std::chrono::milliseconds(20);
constexpr microseconds kPatientSleep{50};
// The background thread polls without pause for a short time after progress (the next message of the exchange is
// probably near), then sleeps between polls, longer and longer while nothing progresses.
constexpr microseconds kAlert{30};
constexpr microseconds kShortestSleep{20};
constexpr microseconds kLongestSleep{500};
constexpr unsigned kDeadlineEvery = 256;  // polls between two readings of the clock
// A sleep that peers end lasts no longer than this, so that deadlines and ended processes are noticed.
constexpr std::chrono::milliseconds kLongestWait{100};
constexpr microseconds kDeviceWait{50};  // nobody wakes a thread when a device has copied a tensor

}  // namespace

Engine::Engine(std::shared_ptr<Wire> wire)
    : wire_(std::move(wire)), checked_(Clock::now()), thread_([this] { background(); }) {}

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
  if (queued_.load()) wire_->wake();              // the lock's holder may be about to sleep
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
  bool moved = false, device_copies = false;
  try {
    if (!failure_) moved = wire_->progress();
  } catch (...) {
    failure_ = std::current_exception();
  }
  if (failure_) {
    fail_all(finished);
    return !finished.empty();
  }
  for (std::size_t i = 0; i < active_.size();) {
    auto& operation = *active_[i];
    auto step = Operation::Step::waiting;
    operation.queue_->begin(polls_);
    try {
      step = operation.advance();
    } catch (...) {
      moved = true;
      fail_at(i, std::current_exception(), finished);
      continue;
    }
    moved |= step != Operation::Step::waiting;
    device_copies |= operation.waits_for_device();
    if (step == Operation::Step::finished)
      retire(i, finished);
    else
      ++i;
  }
  device_copies_.store(device_copies, std::memory_order_relaxed);
  if (polls_ % kDeadlineEvery == 0) check_deadlines(finished);
  return moved;
}

void Engine::fail_at(std::size_t index, std::exception_ptr error, Operations& finished) {
  auto& operation = *active_[index];
  operation.fail(std::move(error));
  if (operation.has_requests()) broken_.push_back(active_[index]);
  retire(index, finished);
}

void Engine::fail_all(Operations& finished) {
  while (!active_.empty()) fail_at(0, failure_, finished);
  device_copies_.store(false, std::memory_order_relaxed);
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
  if (!failure_ && now - checked_ >= kLongestWait) {
    checked_ = now;
    try {
      wire_->check_peers();
    } catch (...) {
      failure_ = std::current_exception();
      fail_all(finished);
    }
  }
  for (std::size_t i = 0; i < active_.size();) {
    auto& operation = *active_[i];
    if (now < operation.deadline_) {
      ++i;
      continue;
    }
    const CommError error(fmt::format(
        "{}: nothing received from {} within {:.3g} s; that rank is slow, stuck or gone, or made other calls",
        operation.text(), operation.pending_peers(), static_cast<double>(operation.program_.timeout.count()) / 1000));
    fail_at(i, std::make_exception_ptr(error), finished);
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
  complete(finished);
  return moved;
}

// Copies back and callbacks of futures may take long or start operations, so they run without the lock.
void Engine::complete(const Operations& finished) {
  if (finished.empty()) return;
  for (const auto& operation : finished) {
    operation->complete();
    outstanding_.fetch_sub(1);
  }
  wire_->wake();  // other threads may wait for these operations
}

bool Engine::sleep(const Operation* waits_for, std::optional<Clock::time_point> until) {
  const auto ticket = wire_->prepare_sleep();
  Operations finished;
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);  // not just tried: nothing may be overlooked now
    moved = poll(finished);
    if (!moved) check_deadlines(finished);
  }
  complete(finished);
  if (moved || !finished.empty() || stopping_ || (waits_for != nullptr && waits_for->done())) {
    wire_->cancel_sleep();
    return true;
  }
  Clock::duration at_most = device_copies_ ? Clock::duration(kDeviceWait) : Clock::duration(kLongestWait);
  if (until) at_most = std::clamp(*until - Clock::now(), Clock::duration(0), at_most);
  wire_->sleep(ticket, at_most);
  return false;
}

bool Engine::drive(const Operation& operation, std::optional<Clock::time_point> until) {
  if (operation.done()) return true;
  drivers_.fetch_add(1);
  const auto leave = c10::make_scope_exit([this] {
    drivers_.fetch_sub(1);
    wake();  // the background thread continues what is left
  });
  const auto spin = wire_->spin_time();
  int looks = 0;
  Clock::time_point silent_since;
  while (!operation.done()) {
    if (try_poll()) {
      looks = 0;
      continue;
    }
    if (++looks < kEagerLooks) continue;
    const auto now = Clock::now();
    if (looks == kEagerLooks) silent_since = now;
    if (until && now >= *until) break;
    if (now - silent_since < spin.value_or(kPatience))
      std::this_thread::yield();
    else if (!spin)
      std::this_thread::sleep_for(kPatientSleep);
    else if (sleep(&operation, until))
      looks = 0;
  }
  return operation.done();
}

void Engine::use(c10::Device device) {
  if (device.is_cuda()) use_device_ = device.index();
}

void Engine::background() {
  pthread_setname_np(pthread_self(), "trireme-comm");
  prctl(PR_SET_TIMERSLACK, 1);  // in ns: the kernel's default of 50 us would triple the short sleeps
  const bool woken = wire_->spin_time().has_value();
  auto pause = kShortestSleep;
  auto last_move = Clock::now();
  // A thread that drives the engine leaves nothing to do here, and tells when it stops.
  const auto has_work = [&] { return outstanding_.load() > 0 && (!woken || drivers_.load() == 0); };
  while (!stopping_) {
    if (!has_work()) {
      std::unique_lock lock(sleep_mutex_);
      idle_.store(true);
      wake_.wait(lock, [&] { return stopping_ || has_work(); });
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
    if (woken) {
      if (sleep(nullptr, std::nullopt)) last_move = Clock::now();
      continue;
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
  wire_->wake();
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

}  // namespace trireme::comm::engine
