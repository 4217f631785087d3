// The screen output of a run, from rank 0 only: a header, a progress bar per epoch (plain lines if the output is not a
// terminal), one line per epoch, and the closing lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::train {

/// The terminal of the output. columns = 0: not a terminal, so no control characters are written.
struct Terminal {
  int columns = 0;
};

struct Progress {
  std::int64_t epoch = 0, epochs = 0;                                        ///< epoch counts from 1
  std::int64_t step = 0, steps = 0;                                          ///< in this epoch; step counts from 1
  std::int64_t total_left = 0;                                               ///< steps left in the run
  double loss = 0, lr = 0, grad_norm = 0, samples_per_s = 0, data_wait = 0;  ///< data_wait: fraction of the time, 0..1
  std::vector<double> worker_rates{};                                        ///< samples per second of each, on rank 0
  std::int64_t skipped = 0;                                                  ///< steps skipped so far
  std::optional<double> flops_per_s{}, mfu{};  ///< of the model, over all ranks; mfu: fraction of the peak
};

class Console {
 public:
  Console(Terminal terminal, bool active) : terminal_(terminal), active_(active) {}
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints lines "label    text" with the labels in one column.
  void header(const std::string& first, const std::vector<std::pair<std::string, std::string>>& rows);
  /// Redraws the bar (at most ten times a second), or prints a line at longer intervals if there is no terminal.
  void progress(const Progress& p, double seconds_a_step);
  /// Clears the bar and prints a line.
  void line(const std::string& text);
  void clear_bar();

 private:
  Terminal terminal_;
  bool active_, bar_shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace trireme::train
