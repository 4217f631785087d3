// Runs a program as a user would, and records its output, its exit code and its run time.
#pragma once

#include <sys/types.h>

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
  double time_limit = 60;                  ///< seconds
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
