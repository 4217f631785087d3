// Removes what Open MPI itself prints when a rank dies or mpirun cannot start: the front says that in one line.
#pragma once

#include <string>
#include <string_view>

namespace trireme::apps {

/// Filters a stream of text by lines: those that begin with "[HOST:PID] ", and blocks between two lines of dashes,
/// which is how Open MPI prints its help texts. All other text passes at once, also lines that are not complete yet.
class MpiNoise {
 public:
  MpiNoise();
  /// The part of the stream that passes after this text was added to it.
  std::string add(std::string_view text);
  /// At the end of the stream: what was held back because it could have become such a line.
  std::string finish();

 private:
  enum class Kind { noise, dashes, other, unknown };
  /// Of a line of which the rest may be missing.
  [[nodiscard]] Kind kind_of(std::string_view line, bool complete) const;

  std::string opening_;    ///< "[HOST:"
  std::string held_;       ///< an incomplete line whose kind is unknown
  bool passes_ = false;    ///< the current line has begun to pass
  bool in_block_ = false;  ///< between two lines of dashes
};

}  // namespace trireme::apps
