// Runs a program as a user would, and records its output, its exit code and its run time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace trireme::tests {

struct ProcessResult {
  int code = -1;  ///< exit code, 128 + n after signal n
  std::string out, err;
  double seconds = 0;
  bool hung = false;  ///< had to be killed at the time limit
};

struct ProcessOptions {
  std::vector<std::string> environment{};  ///< NAME=VALUE is added to ours; NAME alone removes it
  std::string folder{};                    ///< working directory; "" for the current one
  double time_limit = 600;                 ///< seconds, after which a program that hangs is killed
  std::size_t file_limit = 0;              ///< largest size in bytes of a file it writes; 0: no limit
  int columns = 0;                         ///< its output and errors go to terminals of this width; 0: to files
  bool hang_up = false;                    ///< with columns: the terminal is closed after `meanwhile`
  /// Called once with the process id, about `after` seconds from the start.
  std::function<void(pid_t)> meanwhile{};
  double after = 0;
  bool ignore_hang_up = false;  ///< as nohup does
};

ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options = {});

/// The ids of processes whose command line contains `text`.
std::vector<pid_t> processes_with(const std::string& text);
/// Those of them that are ranks of a training, in the order of the ranks.
std::vector<pid_t> ranks_with(const std::string& text);
/// What a variable of a process's environment was when it started its program; "" without the variable.
std::string variable_of(pid_t process, const std::string& name);
/// What a process of run_process() has printed so far; "" until its output goes to a file.
std::string printed_by(pid_t process);
/// The state of a process: 'S' asleep, 'T' stopped, 'Z' a zombie, ...; '?' when there is no such process.
char state_of(pid_t process);
/// Whether it has not ended. A zombie has: in a container nobody may ask for its exit code.
bool runs(pid_t process);
/// Whether a signal is in one of a process's masks, as /proc/PID/status names them: "SigBlk", "ShdPnd".
bool has_signal(pid_t process, const std::string& mask, int signal);

/// Waits until the condition holds, which it asks for again and again. Returns whether it does within the time.
bool wait_until(const std::function<bool()>& condition, double seconds = 60,
                std::chrono::microseconds between = std::chrono::milliseconds(5));

/// A new folder under the system's temporary folder, removed by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

}  // namespace trireme::tests
