// Merges what several ranks write into one stream, line by line, as fast as it is read.
#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "core/launch/event_loop.h"

namespace trireme::apps {

/// Lines of different ranks never mix. The beginning of a line is held until the line is complete, or for a moment: a
/// prompt or a progress bar may have no end. If another rank writes then, it starts on a line of its own. Nothing here
/// waits for whoever reads the stream, if that is a pipe.
class RankOutput {
 public:
  /// `tag`: each line begins with "[RANK] ".
  RankOutput(ranks::EventLoop& loop, std::FILE* to, bool tag) : loop_(loop), to_(to), tag_(tag) {}
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;
  /// Adds a part of a rank's stream; "" at its end.
  void add(int rank, std::string_view text);
  /// Adds a message of this process, on a line of its own.
  void say(std::string_view line);
  /// Adds the beginnings of lines that have waited long enough.
  void write_waiting();
  /// How many bytes are to be written yet.
  [[nodiscard]] std::size_t unwritten() const { return unwritten_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    std::string text;
    Clock::time_point since;
  };
  void write(int rank, std::string_view text);
  void flush();

  ranks::EventLoop& loop_;
  std::FILE* to_;
  bool tag_;
  std::map<int, Waiting> waiting_;
  int unfinished_ = -1;  ///< the rank whose line is written without its end
  std::string unwritten_;
};

}  // namespace trireme::apps
