#include "core/launch/local_ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>

#include "core/base/environment.h"

namespace trireme::ranks {
namespace {

constexpr std::chrono::seconds kAfterKill{3};
/// How much is read at once, in parts of 64 KiB, so that one rank's output does not delay the others'; and at a rank's
/// end all that a pipe can hold, but not all that a process which it has left behind may write.
constexpr int kPartsAtOnce = 4, kPartsAtEnd = 20;

bool is_notice(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

}  // namespace

int RankState::signal() const { return status && WIFSIGNALED(*status) ? WTERMSIG(*status) : 0; }

int RankState::code() const {
  if (!status) return 0;
  return WIFSIGNALED(*status) ? 128 + WTERMSIG(*status) : WEXITSTATUS(*status);
}

LocalRanks::LocalRanks(EventLoop& loop, std::vector<Program> programs, const RankSettings& settings, RankEvents events)
    : loop_(loop), settings_(settings), events_(std::move(events)), ranks_(programs.size()), states_(programs.size()) {
  try {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      states_[rank].rank = static_cast<int>(rank);
      start(rank, std::move(programs[rank]));
    }
  } catch (...) {
    kill_all();
    throw;
  }
}

void LocalRanks::start(std::size_t rank, Program program) {
  auto& started = ranks_[rank];
  Pipe report;
  std::optional<Pipe> outputs[2];
  Inheritance inheritance{.descriptors = {report.write_end.get()},
                          .others = !settings_.of_spawn,
                          .own_group = !settings_.of_spawn,
                          .blocked = settings_.blocked};
  if (rank == 0 && settings_.store_socket >= 0) inheritance.descriptors.push_back(settings_.store_socket);
  if (!settings_.of_spawn) {
    for (auto& output : outputs) output.emplace();
    inheritance.output = outputs[0]->write_end.get();
    inheritance.error = outputs[1]->write_end.get();
  }
  set_variable(program.environment, kReportVariable, report_variable(report.write_end.get()));
  started.process = states_[rank].process = start_process(std::move(program), inheritance);
  started.report = std::make_unique<ReportReader>(std::move(report.read_end), states_[rank].report);
  loop_.watch(started.report->descriptor(), [this, rank] { read_report(rank); });
  for (int i = 0; i < 2 && outputs[i]; ++i) {
    started.outputs[i] = std::move(outputs[i]->read_end);
    watch_output(rank, i);
  }
}

void LocalRanks::watch_output(std::size_t rank, int index) {
  loop_.watch(ranks_[rank].outputs[index].get(), [this, rank, index] { read_output(rank, index, kPartsAtOnce); });
}

void LocalRanks::read_outputs_now() {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    for (int i = 0; i < 2; ++i) read_output(rank, i, kPartsAtOnce);
}

void LocalRanks::read_outputs(bool wanted) {
  if (std::exchange(reads_outputs_, wanted) == wanted) return;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    for (int i = 0; i < 2; ++i) {
      if (!ranks_[rank].outputs[i]) continue;
      if (wanted)
        watch_output(rank, i);
      else
        loop_.forget(ranks_[rank].outputs[i].get());
    }
}

LocalRanks::~LocalRanks() { kill_all(); }

void LocalRanks::kill_all() {
  if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process > 0 || rank.orphans > 0; }))
    send(SIGKILL);
  // One that waits for a device or a disk for good does not end; this process is not to wait for it.
  const auto deadline = Clock::now() + kAfterKill;
  for (auto& rank : ranks_) {
    if (const auto process = std::exchange(rank.process, -1); process > 0) {
      while (waitpid(process, nullptr, WNOHANG) == 0 && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (rank.report) loop_.forget(rank.report->descriptor());
    for (auto& output : rank.outputs) {
      loop_.forget(output.get());
      output = FileDescriptor();
    }
  }
  if (settings_.of_spawn) return;
  prctl(PR_SET_CHILD_SUBREAPER, 0);  // init gets what this process's next ranks leave behind
  while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
}

void LocalRanks::send(int signal) {
  // Processes that a rank has started end with it, but a notice is for the rank alone.
  const bool group = !settings_.of_spawn && !is_notice(signal);
  if (group && signal != SIGTSTP && signal != SIGCONT && !std::exchange(ending_, true))
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // what ranks leave behind from now on is waited for here
  for (auto& rank : ranks_) {
    if (rank.process > 0) kill(group ? -rank.process : rank.process, signal);
    if (rank.orphans > 0 && group) kill(-rank.orphans, signal);
    if (signal == SIGKILL) rank.orphans = -1;
  }
}

void LocalRanks::end(int signal, std::chrono::seconds patience) {
  send(signal);
  if (!deadline_) expect_end(patience);
}

void LocalRanks::expect_end(std::chrono::seconds patience) {
  patience_ = patience;
  deadline_ = Clock::now() + patience;
}

void LocalRanks::check_deadline() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  gave_up_ = killed_after_.has_value();
  if (gave_up_) return;
  send(SIGKILL);
  killed_after_ = patience_;
  deadline_ = Clock::now() + kAfterKill;
}

bool LocalRanks::busy() const {
  return !gave_up_ && std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.process > 0 || (rank.waits_for_orphans && rank.orphans > 0 && kill(-rank.orphans, 0) == 0);
  });
}

void LocalRanks::collect() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    auto& rank = ranks_[i];
    collect_orphans(rank);
    int status = 0;
    const pid_t ended = rank.process > 0 ? waitpid(rank.process, &status, WNOHANG) : 0;
    // A program may ignore SIGCHLD, or wait for all children itself.
    const bool unknown = ended < 0 && errno == ECHILD;
    read_report(i);  // what it has reported before its end
    if (unknown && states_[i].report.failure) status = W_EXITCODE(states_[i].report.failure->code, 0);
    if (ended > 0 || unknown) on_end(i, status);
  }
}

void LocalRanks::collect_orphans(Rank& rank) {
  while (rank.orphans > 0 && waitpid(-rank.orphans, nullptr, WNOHANG) > 0) continue;
  if (rank.orphans > 0 && kill(-rank.orphans, 0) != 0) rank.orphans = -1;
}

void LocalRanks::on_end(std::size_t index, int status) {
  auto& rank = ranks_[index];
  // What it wrote is read before its end is noticed. Processes that it left behind may still hold the pipes.
  for (int i = 0; i < 2; ++i) {
    read_output(index, i, kPartsAtEnd);
    close_output(index, i);
  }
  const pid_t group = std::exchange(rank.process, -1);
  if (!settings_.of_spawn) {
    // No new group gets the number while a process is in this one.
    while (waitpid(-group, nullptr, WNOHANG) > 0) continue;  // those that ended with it send no signal any more
    rank.orphans = kill(-group, 0) == 0 ? group : -1;
    rank.waits_for_orphans = ending_;  // otherwise init has got them, and in a container it may not reap them
  }
  states_[index].status = status;
  if (events_.ended) events_.ended(states_[index]);
  if (!ending_ && states_[index].code() == 0) rank.orphans = -1;  // a run that goes on leaves them alone
}

void LocalRanks::read_report(std::size_t rank) {
  auto& reader = *ranks_[rank].report;
  const int descriptor = reader.descriptor();
  if (descriptor < 0) return;
  reader.read();
  if (reader.descriptor() < 0) loop_.forget(descriptor);
}

void LocalRanks::read_output(std::size_t rank, int index, int most_parts) {
  const auto& output = ranks_[rank].outputs[index];
  std::array<char, 65536> text{};
  for (int part = 0; part < most_parts && output; ++part) {
    const auto length = read(output.get(), text.data(), text.size());
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length <= 0) return close_output(rank, index);
    events_.output(static_cast<int>(rank), index + 1, std::string_view(text.data(), static_cast<std::size_t>(length)));
  }
}

void LocalRanks::close_output(std::size_t rank, int index) {
  auto& output = ranks_[rank].outputs[index];
  if (!output) return;
  loop_.forget(output.get());
  output = FileDescriptor();
  events_.output(static_cast<int>(rank), index + 1, "");
}

}  // namespace trireme::ranks
