// Timeline: writes some steps of a run as a Chrome trace, for chrome://tracing or ui.perfetto.dev. It shows what every
// rank computed, sent and waited for, on one clock.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/mesh.h"

namespace trireme::train {

class Timeline {
 public:
  /// Traces steps [first, first + count), counted from the start of this run. `path`: the file that rank 0 writes.
  Timeline(comm::Mesh& mesh, std::string path, std::int64_t first, std::int64_t count);

  /// Call before each step.
  void begin(std::int64_t step);
  /// Call after each step. Returns true once: after the last traced step, when the file is written. Collective.
  bool end(std::int64_t step);
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void write();
  comm::Mesh& mesh_;
  std::string path_;
  std::int64_t first_, count_;
};

}  // namespace trireme::train
