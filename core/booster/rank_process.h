// One process that spawn() starts: from its start, which copies nothing of this process, to its end and its report.
// Private to core/booster.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <utility>

namespace trireme {

/// What all ranks of a call have in common.
struct SpawnCall {
  std::string place;
  int ranks;
  bool on_cpu;
  int port, store_socket;
  std::string flight_folder;  ///< of the ranks' flight records; "" if there is none
};

/// How a rank has failed.
struct RankFailure {
  int rank, code;
  std::string message;
};

/// A pipe whose ends are not inherited; the write end's number is above those that a rank's process gets.
struct ReportPipe {
  int read_end = -1, write_end = -1;
  /// @throws ConfigError
  ReportPipe();
  ~ReportPipe();
  ReportPipe(const ReportPipe&) = delete;
  ReportPipe& operator=(const ReportPipe&) = delete;
  void close_write_end();
};

/// One rank's process, from its start to its end.
class RankProcess {
 public:
  /// @throws ConfigError when the process cannot be started
  RankProcess(const SpawnCall& call, int rank);
  /// Kills the process if it still runs.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  /// Reads what it has reported and whether it has ended.
  void look();
  void send(int signal) const {
    if (process_ > 0) kill(process_, signal);
  }
  [[nodiscard]] bool ended() const { return process_ <= 0; }
  [[nodiscard]] int descriptor() const { return at_end_ ? -1 : pipe_.read_end; }
  [[nodiscard]] const std::optional<RankFailure>& failure() const { return failure_; }
  [[nodiscard]] std::string take_text() { return std::move(text_); }

 private:
  void parse();
  void on_end(int status);

  int rank_;
  ReportPipe pipe_;
  pid_t process_ = -1;
  bool at_end_ = false, reached_ = false, done_ = false;
  std::string bytes_, text_, place_;
  std::optional<RankFailure> failure_;
};

}  // namespace trireme
