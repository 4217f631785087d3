// The messages between `trireme launch` and its agent on another host, over the remote shell's standard input and
// output. Each has a line "KIND RANK VALUE LENGTH" and LENGTH bytes. The agent begins with a greeting that has its
// version, which the launcher compares before it sends anything.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "apps/front/local_ranks.h"

namespace trireme::apps {

enum class FrameKind : char {
  job = 'j',     ///< to the agent: the text is a RankJob with the working directory, as JSON
  signal = 's',  ///< to the agent: value is a signal for its ranks
  port = 'p',    ///< from rank 0's agent, before the job starts: value is the port of the store
  output = 'o',  ///< from the agent: a part of a rank's stream `value`, "" at its end
  end = 'e',     ///< from the agent: a rank has ended with the status `value`
  error = 'x',   ///< from the agent: it cannot start its ranks; value is the exit code, the text a message
};

struct Frame {
  FrameKind kind = FrameKind::job;
  int rank = 0, value = 0;
  std::string text{};
};

/// Writes all of a frame. Returns false if the other side is gone.
bool write_frame(int descriptor, FrameKind kind, int rank, int value, std::string_view text = "");

/// Splits a stream into frames.
class FrameReader {
 public:
  /// Reads what is available. Returns false at the end of the stream.
  bool read_from(int descriptor);
  /// Without a greeting so far: what the stream has until then is skipped, such as a login script's output.
  /// Returns the version in the greeting once it has arrived.
  std::optional<std::string> greeting();
  /// The next complete frame. @throws CommError when the stream has something else
  std::optional<Frame> next();

 private:
  std::string bytes_;
};

/// The line with which an agent begins.
std::string greeting_line();

/// The job as JSON. @throws ConfigError when it has text that is not UTF-8
std::string job_text(const RankJob& job, const std::string& folder);
struct FolderAndJob {
  std::string folder;
  RankJob job;
};
FolderAndJob parse_job(const std::string& text);

}  // namespace trireme::apps
