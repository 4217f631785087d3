#include "core/comm/engine/operation.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/comm/engine/engine.h"
#include "core/comm/engine/message_queue.h"

namespace trireme::comm::engine {
Operation::Operation(std::shared_ptr<Engine> engine, std::shared_ptr<const Channel> channel, c10d::OpType type,
                     Program program)
    : c10d::Work(channel->rank, type),
      engine_(std::move(engine)),
      channel_(std::move(channel)),
      program_(std::move(program)) {}

Operation::~Operation() = default;

std::string Operation::text() const {
  return fmt::format("{} (sequence {}) of group {}, rank {} of {}", program_.name, program_.sequence, channel_->axis,
                     channel_->rank, channel_->size);
}

std::string Operation::peer_text(int peer) const {
  return fmt::format("rank {} (world rank {})", peer, channel_->ranks.at(static_cast<std::size_t>(peer)));
}

bool Operation::may_post(const Round& round) const {
  return std::all_of(round.sends.begin(), round.sends.end(),
                     [this](const Transfer& transfer) { return queue_->sends.free(transfer.peer); });
}

void Operation::post(Round& round) {
  requests_.clear();
  request_peers_.clear();
  open_requests_ = 0;
  // Messages of zero bytes are sent too, because the receiver checks the size.
  auto& wire = engine_->wire();
  const auto each_message = [longest = wire.longest_message()](const Transfer& transfer, auto&& body) {
    std::size_t at = 0;
    do {
      const auto bytes = std::min(longest, transfer.bytes - at);
      body(static_cast<std::byte*>(transfer.data) + at, bytes);
      at += bytes;
    } while (at < transfer.bytes);
  };
  for (const auto& transfer : round.receives)
    each_message(transfer, [&](std::byte* data, std::size_t bytes) {
      arrivals_.push_back({data, bytes, transfer.peer});
    });
  for (const auto& transfer : round.sends)
    each_message(transfer, [&](const std::byte* data, std::size_t bytes) {
      add_request(wire.send(*channel_, program_.tag, transfer.peer, data, bytes), transfer.peer);
      ++channel_->traffic->sent;
    });
  posted_ = true;
}

/// A receive behind an older one of the same peer and tag has not started: its time is that of the older one.
void Operation::note_start() {
  started_ = arrivals_.empty() || std::any_of(arrivals_.begin(), arrivals_.end(), [this](const Arrival& arrival) {
               return queue_->receives.free(arrival.peer);
             });
  if (!started_) return;
  deadline_ = Clock::now() + program_.timeout;
  program_.entry.started();
}

void Operation::add_request(Request request, int peer) {
  if (request == kNoRequest) return;
  requests_.push_back(request);
  request_peers_.push_back(peer);
  ++open_requests_;
}

bool Operation::match(const Arrival& arrival) {
  const auto& receive_order = queue_->receives;
  if (!receive_order.free(arrival.peer)) return false;
  if (arrival.peer != kAnySource || receive_order.all_free()) return match_from(arrival.peer, arrival);
  for (int peer = 0; peer < channel_->size; ++peer)  // any peer except those whose next message belongs to an older
                                                     // receive
    if (receive_order.free(peer) && match_from(peer, arrival)) return true;
  return false;
}

bool Operation::match_from(int peer, const Arrival& arrival) {
  auto& wire = engine_->wire();
  const auto matched = wire.match(*channel_, program_.tag, peer);
  if (!matched) return false;
  ++channel_->traffic->received;
  source_ = matched->source;
  const bool fits = matched->bytes == arrival.bytes;
  auto* data = arrival.data;
  // A message of the wrong size is still received, into scratch memory, because its sender waits for that.
  if (!fits) data = program_.scratch.emplace_back(engine_->scratch(matched->bytes)).get();
  add_request(wire.receive(*channel_, *matched, data), source_);
  if (!fits)
    throw CommError(
        fmt::format("{}: {} sent {} bytes, this rank expects {}; do all ranks make the same calls in the same order, "
                    "with the same shapes and dtypes?",
                    text(), peer_text(source_), matched->bytes, arrival.bytes));
  return true;
}

bool Operation::match_arrivals() {
  // In order for each peer: a later message of a peer is not matched before its earlier ones.
  std::size_t remaining = 0;
  for (std::size_t i = 0; i < arrivals_.size(); ++i) {
    const auto arrival = arrivals_[i];
    if (match(arrival)) {
      // The rest of a long message comes from the same source.
      if (arrival.peer == kAnySource)
        for (auto rest = i + 1; rest < arrivals_.size(); ++rest) arrivals_[rest].peer = source_;
      continue;
    }
    queue_->receives.hold(arrival.peer);
    arrivals_[remaining++] = arrival;
  }
  const bool any = remaining < arrivals_.size();
  arrivals_.resize(remaining);
  return any;
}

void Operation::hold_what_is_left() {
  for (const auto& arrival : arrivals_) queue_->receives.hold(arrival.peer);
  for (auto round = round_ + (posted_ ? 1 : 0); round < program_.rounds.size(); ++round) {
    for (const auto& transfer : program_.rounds[round].receives) queue_->receives.hold(transfer.peer);
    for (const auto& transfer : program_.rounds[round].sends) queue_->sends.hold(transfer.peer);
  }
}

bool Operation::collect_requests() {
  if (open_requests_ == 0) return false;
  const auto completed = engine_->wire().test(requests_, request_peers_);
  open_requests_ -= completed;
  return completed > 0;
}

void Operation::check_ended() const {
  std::optional<int> first;
  int peer = kAnySource;
  for (const auto& arrival : arrivals_)
    if (const auto order = engine_->wire().ended(*channel_, program_.tag, arrival.peer);
        order && (!first || *order < *first)) {
      first = order;
      peer = arrival.peer;
    }
  if (!first) return;
  throw CommError(peer == kAnySource ? fmt::format("{}: all other ranks have ended", text())
                                     : fmt::format("{}: {} has ended", text(), peer_text(peer)));
}

Operation::Step Operation::advance() {
  auto step = Step::waiting;
  try {
    step = go_on();
  } catch (const WireError& error) {
    throw CommError(fmt::format("{}: {} {}", text(), peer_text(error.peer), error.text));
  }
  if (step != Step::finished && queue_->users > 1) hold_what_is_left();
  return step;
}

Operation::Step Operation::go_on() {
  if (!posted_) {
    if (program_.ready && !program_.ready()) return Step::waiting;
    program_.ready = nullptr;
    if (round_ == program_.rounds.size()) return Step::finished;
    if (!may_post(program_.rounds[round_])) return Step::waiting;
    post(program_.rounds[round_]);
  }
  if (!started_) note_start();
  if (exchanging()) {
    bool moved = !arrivals_.empty() && match_arrivals();
    moved |= collect_requests();
    if (exchanging()) {
      if (!moved) check_ended();
      return moved ? Step::moved : Step::waiting;
    }
  }
  if (auto& then = program_.rounds[round_].then) then();
  posted_ = false;
  if (++round_ == program_.rounds.size()) return Step::finished;
  if (may_post(program_.rounds[round_])) post(program_.rounds[round_]);
  return Step::moved;
}

std::string Operation::pending_peers() const {
  std::set<int> silent;
  for (const auto& arrival : arrivals_) silent.insert(arrival.peer);
  for (std::size_t i = 0; i < requests_.size(); ++i)
    if (requests_[i] != kNoRequest) silent.insert(request_peers_[i]);
  if (silent.contains(kAnySource)) return "any rank";
  std::vector<std::string> names;
  for (const int peer : silent) names.push_back(peer_text(peer));
  if (names.empty()) return "an earlier operation with the same tag";
  return fmt::format("{}", fmt::join(names, ", "));
}

void Operation::fail(std::exception_ptr error) {
  error_ = std::move(error);
  program_.entry.failed();
}

void Operation::complete() {
  if (!error_ && program_.finish) {
    try {
      program_.finish();
    } catch (const std::exception& error) {
      error_ = std::make_exception_ptr(CommError(fmt::format("{}: copying the result back: {}", text(), error.what())));
    }
  }
  if (!error_) {  // after an error, transfers may be in progress, and the engine keeps this operation until release()
    program_.rounds.clear();
    program_.scratch.clear();
    program_.tensors.clear();
  }
  program_.ready = nullptr;
  program_.finish = nullptr;
  if (!error_) program_.entry.completed();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    future = future_;
  }
  if (future) settle(*future);
}

/// @pre done()
void Operation::settle(c10::ivalue::Future& future) const {
  if (error_)
    future.setError(error_);
  else
    future.markCompleted(c10::IValue(program_.results));
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  std::optional<Clock::time_point> until;
  if (timeout.count() > 0) until = Clock::now() + timeout;
  if (!engine_->drive(*this, until))
    throw CommError(
        fmt::format("{}: not complete within {:.3g} s", text(), static_cast<double>(timeout.count()) / 1000));
  if (error_) std::rethrow_exception(error_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    for (const auto& tensor : program_.results)
      if (!tensor.is_cpu() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
        devices.push_back(tensor.device());
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future = future_;
    complete = done();
  }
  if (complete)
    settle(*future);
  else
    engine_->wake();  // a thread that waits on a future does not drive the engine
  return future;
}

}  // namespace trireme::comm::engine
