#include "apps/front/all_ranks.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace trireme::apps {

/// That a host has to report the end of killed ranks.
constexpr std::chrono::seconds kAfterKill{3};

int ranks_of(const StartOptions& options) { return options.hosts.back().first + options.hosts.back().count; }

AllRanks::AllRanks(EventLoop& loop, const StartOptions& options, const FlightWatch& watch, RankEvents events,
                   std::function<void(const HostFailure& failure)> failed)
    : loop_(loop),
      options_(options),
      watch_(watch),
      events_(std::move(events)),
      failed_(std::move(failed)),
      address_(store_address(options.hosts)) {}

void AllRanks::start() {
  if (!options_.hosts[0].here) return start_host(0);  // it reports the port, and the others start then
  const bool alone = options_.hosts.size() == 1;
  store_.emplace(alone, address_.port);
  address_.port = store_->port();
  start_host(0);
  store_.reset();  // rank 0 has it
  start_others();
}

void AllRanks::start_host(std::size_t index) {
  const auto& share = options_.hosts[index];
  RankJob job{.program = options_.program,
              .environment = share.here ? options_.environment : environment_for_hosts(),
              .size = ranks_of(options_),
              .first = share.first,
              .count = share.count,
              .host = static_cast<int>(index),
              .store = address_};
  if (share.here) {
    watch_.set_variable(job.environment);
    auto ranks = std::make_unique<LocalRanks>(loop_, job, store_ ? store_->descriptor() : -1, events_);
    local_ = ranks.get();
    hosts_.push_back(std::move(ranks));
    return;
  }
  const auto on_port = [this](int port) {
    address_.port = port;
    if (!is_ending()) start_others();
  };
  const RemoteEvents remote{.ranks = events_, .port = on_port, .failed = failed_};
  hosts_.push_back(std::make_unique<RemoteRanks>(loop_, share.name, options_.shell, job, remote));
}

void AllRanks::start_others() {
  for (std::size_t i = hosts_.size(); i < options_.hosts.size(); ++i) start_host(i);
}

bool AllRanks::busy() const {
  return std::any_of(hosts_.begin(), hosts_.end(), [](const auto& host) { return host->busy(); });
}

void AllRanks::send(int signal) {
  for (const auto& host : hosts_) host->send(signal);
}

void AllRanks::end(int signal, std::chrono::seconds patience) {
  send(signal);
  if (!deadline_) expect_end(patience);
}

void AllRanks::expect_end(std::chrono::seconds patience) { deadline_ = Clock::now() + patience; }

void AllRanks::check_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  if (killed_) {  // a host that does not answer
    local_ = nullptr;
    hosts_.clear();
    return;
  }
  send(SIGKILL);
  killed_ = true;
  deadline_ = Clock::now() + kAfterKill;
}

void AllRanks::collect() {
  if (local_ != nullptr) local_->collect();
}

}  // namespace trireme::apps
