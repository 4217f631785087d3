// NumbersState: what a run remembers of its steps' losses and norms (core/train/bad_numbers.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace trireme::train {

/// It is part of a checkpoint, so that a resumed run decides the same.
struct NumbersState {
  std::vector<std::int64_t> left_out{};        ///< steps (from 1) whose batches are not trained, ascending
  std::vector<std::int64_t> series{};          ///< the bad steps in a row up to now
  std::int64_t bad_losses = 0, skips = 0;      ///< in a row
  std::vector<double> losses{};                ///< of the last steps, the oldest first; without train.loss_spike empty
  std::int64_t returned_to = -1, returns = 0;  ///< the step of the last return, and how often in a row it was this one
};
nlohmann::json to_json(const NumbersState& state);
/// `stored`: null for a record of a version that had none.
NumbersState numbers_state(const nlohmann::json& stored);

}  // namespace trireme::train
