// Removes what Open MPI itself prints when a rank dies or mpirun cannot start: the front says that in one line.
#pragma once

#include <string>
#include <string_view>

namespace trireme::apps {

/// Filters a stream of text by lines: Open MPI's own, "[HOST:PID] *** Process received signal ***" and the like, what
/// mpirun says to a second signal, and its help texts, which stand between two lines of 74 dashes. Standard output can
/// only have what mpirun says to a signal. All other text passes: at once, also lines that are not
/// complete yet; within a help text, when that turns out to be none. Lines of ours ("trireme: ...") always pass at
/// once.
class MpiNoise {
 public:
  enum class Of { output, errors };
  explicit MpiNoise(Of stream);
  /// The part of the stream that passes after this text was added to it.
  std::string add(std::string_view text);
  /// At the end of the stream: what was held back because it could have become one of those lines.
  std::string finish();

 private:
  enum class Kind { noise, aborting, dashes, ours, other, unknown };
  /// The kind of a line of which the rest may be missing.
  [[nodiscard]] Kind kind_of(std::string_view line, bool complete) const;
  /// Decides on the complete line in partial_line_, or returns "" for what is held back.
  std::string decide(Kind kind);

  Of stream_;
  bool after_aborting_ = false;  ///< the line before was what mpirun says to a second signal
  std::string opening_;          ///< "[HOST:"
  std::string partial_line_;     ///< an incomplete line whose kind is unknown
  std::string block_;            ///< since a line of dashes: perhaps a help text
  bool in_block_ = false;        ///< block_ has begun
  bool passes_ = false;          ///< the current line has begun to pass
};

}  // namespace trireme::apps
