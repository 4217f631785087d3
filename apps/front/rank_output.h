// Merges what several ranks write into one stream, line by line.
#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

namespace trireme::apps {

/// Lines of different ranks never mix. The beginning of a line is held until the line is complete, or for a moment: a
/// prompt or a progress bar may have no end. If another rank writes then, it starts on a line of its own.
class RankOutput {
 public:
  /// `tag`: each line begins with "[RANK] ".
  RankOutput(std::FILE* to, bool tag) : to_(to), tag_(tag) {}
  /// Adds a part of a rank's stream; "" at its end.
  void add(int rank, std::string_view text);
  /// Writes the beginnings of lines that have waited long enough.
  void write_waiting();

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    std::string text;
    Clock::time_point since;
  };
  void write(int rank, std::string_view text);

  std::FILE* to_;
  bool tag_;
  std::map<int, Waiting> waiting_;
  int unfinished_ = -1;  ///< the rank whose line is written without its end
};

}  // namespace trireme::apps
