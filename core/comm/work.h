// The implementation of Work. Private to core/comm.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/comm/group.h"

namespace trireme::comm {

struct Work::State {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;  ///< an entry may be null: complete
  double start_time = 0;                              ///< when it started, if it is traced; else 0
  std::string track{}, span_name{};
  std::string what;  ///< "all_reduce of group dp", for errors that are not Trireme's
  /// {copy that the backend fills, the caller's tensor}: copied back when complete.
  std::vector<std::pair<at::Tensor, at::Tensor>> copy_back;
};

}  // namespace trireme::comm
