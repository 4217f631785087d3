#include "apps/front/flight_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "apps/report.h"
#include "core/base/environment.h"
#include "core/comm/flight/report.h"

namespace trireme::apps {
namespace {

namespace flight = comm::flight;
using std::chrono::milliseconds;

constexpr milliseconds kFlightLook{100};
/// Ranks that notice the same failure do so within this time, and each leaves its mark.
constexpr milliseconds kSettle{250};
/// The end of a rank's process is known at once; that of a program which a rank's shell has started, only by its
/// record.
constexpr std::chrono::seconds kForSignal{6};
constexpr std::chrono::seconds kToEnd{10};

bool any_died(const std::vector<flight::RankView>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const flight::RankView& rank) { return rank.died(); });
}

}  // namespace

FlightWatch::FlightWatch(int world_size, Ranks ranks) : world_size_(world_size), ranks_(ranks) {
  if (!folder_.path().empty())
    control_ = flight::MappedFile::open(folder_.path() + "/" + flight::kControlFile, sizeof(flight::Control), true);
}

// Without a folder the variable is empty, because that of an outer run must not be used.
void FlightWatch::set_variable(std::vector<std::string>& environment) const {
  trireme::set_variable(environment, flight::kFolderVariable, folder_.path());
}

flight::Control* FlightWatch::control() const { return static_cast<flight::Control*>(control_.memory()); }

void FlightWatch::note_dying() {
  if (auto* shared = control()) std::atomic_ref(shared->dying).store(1);
}

void FlightWatch::look() {
  const auto now = Clock::now();
  if (printed_ || !control_ || now - looked_ < kFlightLook) return;
  looked_ = now;
  if (std::atomic_ref(control()->late).load() != 0) return;  // they end, and lose each other
  auto ranks = flight::read_ranks(folder_.path());
  if (flight::is_explained(ranks)) return;
  if (!noticed_) {
    if (!flight::is_failure(ranks)) return;
    noticed_ = now;
    note_dying();
    if (any_died(ranks)) at_death_ = std::move(ranks);
    return;
  }
  const auto waited = now - *noticed_;
  if (at_death_.empty() ? waited >= kSettle : waited >= kForSignal) print(at_death_.empty() ? ranks : at_death_);
}

void FlightWatch::rank_died(int rank, int signal) {
  if (printed_ || !control_ || world_size_ == 1) return;
  const auto ranks = flight::read_ranks(folder_.path());
  if (ranks.empty()) return;  // a program that has no world
  note_dying();
  const auto name = fmt::format("rank {}", rank);
  ended_[rank] = ended_by_signal(name, signal, ranks_, world_size_).substr(name.size() + 1);
  print(ranks);
}

void FlightWatch::print(const std::vector<flight::RankView>& ranks) {
  const auto text = flight::report(ranks, {.world_size = world_size_, .all_on_this_host = true, .ended = ended_});
  const auto line = text.find('\n');
  headline_ = text.substr(0, line);
  say_error(headline_);
  std::fwrite(text.data() + line + 1, 1, text.size() - line - 1, stderr);
  std::fflush(stderr);
  printed_ = true;
  printed_at_ = Clock::now();
  std::atomic_ref(control()->printed).store(1);
}

bool FlightWatch::takes_signals() const {
  auto* shared = control();
  return shared != nullptr && std::atomic_ref(shared->takes_signals).load() == 1;
}

bool FlightWatch::is_training() const {
  auto* shared = control();
  return shared != nullptr && std::atomic_ref(shared->takes_signals).load() != 0;
}

bool FlightWatch::stopped_as_asked() const {
  auto* shared = control();
  return shared != nullptr && std::atomic_ref(shared->stopped).load() != 0;
}

std::string FlightWatch::unsaved() const {
  const auto* shared = control();
  if (shared == nullptr || !takes_signals() || stopped_as_asked()) return "";
  std::string text;
  if (shared->late > 0) text = fmt::format("; it could not save within run.stop_grace_s = {}", shared->late);
  if (shared->unsaved[0] != '\0') text += fmt::format("; {}", shared->unsaved.data());
  return text;
}

RunEnd FlightWatch::completed(RunEnd end) const {
  if (auto* shared = control()) {
    end.smaller_micro_batch = std::atomic_ref(shared->smaller_micro_batch).load();
    end.saved_step = std::atomic_ref(shared->saved_step).load();
    end.trained_in = shared->trained_in.data();
  }
  return end;
}

bool FlightWatch::overdue() const { return printed_ && Clock::now() - printed_at_ > kToEnd; }

}  // namespace trireme::apps
