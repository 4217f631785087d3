// Timeline: some steps of a run as a Chrome trace, for chrome://tracing or ui.perfetto.dev: what every rank computed,
// sent and waited for, on one clock.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/mesh.h"

namespace trireme::train {

class Timeline {
 public:
  /// Of steps [first, first + count), counted from the start of this run. `path`: the file that rank 0 writes.
  Timeline(comm::Mesh& mesh, std::string path, std::int64_t first, std::int64_t count);

  /// Before each step.
  void begin(std::int64_t step);
  /// After each step. True once: the last of them has ended, and the file is written. Collective.
  bool end(std::int64_t step);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void write();
  comm::Mesh& mesh_;
  std::string path_;
  std::int64_t first_, count_;
};

}  // namespace trireme::train
