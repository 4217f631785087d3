// A process that spawn() has started: what it knows from its start on, and its report to the caller. Private to
// core/booster.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// How a rank reports: each message is this kind, a value, a length and a text, over a pipe.
enum class ReportKind : int {
  reached,  ///< it came to the call of spawn()
  done,     ///< the function has returned this text
  failed,   ///< the value is the exit code, the text the message
};
struct ReportHeader {
  ReportKind kind;
  int value;
  std::size_t length;
};

/// Descriptors that a rank's process inherits.
inline constexpr int kReportDescriptor = 3, kStoreDescriptor = 4;
/// Names the call of spawn() at which a rank's process runs the function: "FILE:LINE:COLUMN#NUMBER".
inline constexpr const char* kSpawnCall = "TRIREME_SPAWN";
/// "CALLER RANK RANKS PORT": the caller's process, and the rank's place. Its variables are set only at the call, so
/// that main() sees until then what it saw in the caller.
inline constexpr const char* kSpawnRank = "TRIREME_SPAWN_RANK";

/// What this process was at its start, before main() could change it.
struct ProgramStart {
  std::vector<std::string> arguments, environment;
  std::string folder;
};
const ProgramStart& program_start();

/// This process, if spawn() has started it.
class SpawnedProcess {
 public:
  /// Null in other processes.
  static SpawnedProcess* get();
  [[nodiscard]] const std::string& call() const { return call_; }
  /// Whether the call is reached: the function runs.
  [[nodiscard]] bool reached() const { return reached_; }
  /// Restores standard output and error, and sets the rank's variables.
  void reach();
  /// Reports to the caller and ends this process. The exit code is `value` of a failure, else 0.
  [[noreturn]] void end(ReportKind kind, int value, const std::string& text);

  SpawnedProcess(std::string call, int rank, int size, int port);

 private:
  void report(ReportKind kind, int value, const std::string& text) const;

  std::string call_;
  int rank_, size_, port_;
  int output_ = -1, error_ = -1;  ///< the real streams
  bool reached_ = false;
};

}  // namespace trireme
