// Boosted::epochs(): the loop over the epochs of a training and their batches. It begins where the run stands, so that
// a run whose checkpoint was loaded goes on within the epoch in which that was saved:
//
//   for (const auto epoch : run.epochs(20))
//     for (const auto& batch : epoch) run.train_step(batch);
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "core/data/loader.h"

namespace trireme {

/// The batches of an epoch that are left; read once.
class Epoch {
 public:
  /// Those of steps [first, first + count) of this epoch.
  Epoch(data::Loader& loader, std::int64_t number, std::int64_t first, std::int64_t count)
      : loader_(&loader), number_(number), first_(first), count_(count) {}
  [[nodiscard]] std::int64_t number() const { return number_; }  ///< from 0

  class Iterator {
   public:
    Iterator(data::Loader& loader, std::int64_t count) : loader_(&loader), left_(count) { read(); }
    const data::StepBatch& operator*() const { return *batch_; }
    void operator++() { read(); }
    bool operator==(std::default_sentinel_t /*end*/) const { return !batch_; }

   private:
    void read() {
      batch_.reset();  // before the next one is made: two would take the memory twice
      if (left_-- > 0) batch_ = loader_->next();
    }

    data::Loader* loader_;
    std::int64_t left_;
    std::optional<data::StepBatch> batch_;
  };
  /// @throws DataError, as Loader::next() does; so does ++
  [[nodiscard]] Iterator begin() const {
    loader_->start_epoch(number_, first_);
    return {*loader_, count_};
  }
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }

 private:
  data::Loader* loader_;
  std::int64_t number_, first_, count_;
};

class Epochs {
 public:
  /// Steps [first, last) of a training.
  Epochs(data::Loader& loader, std::int64_t first, std::int64_t last) : loader_(&loader), first_(first), last_(last) {}

  class Iterator {
   public:
    Iterator(data::Loader& loader, std::int64_t step, std::int64_t last)
        : loader_(&loader), steps_(loader.steps_per_epoch()), step_(step), last_(last) {}
    Epoch operator*() const { return {*loader_, step_ / steps_, step_ % steps_, next() - step_}; }
    void operator++() { step_ = next(); }
    bool operator==(std::default_sentinel_t /*end*/) const { return step_ >= last_; }

   private:
    /// The first step of the next epoch, or the end.
    [[nodiscard]] std::int64_t next() const { return std::min((step_ / steps_ + 1) * steps_, last_); }

    data::Loader* loader_;
    std::int64_t steps_, step_, last_;
  };
  [[nodiscard]] Iterator begin() const { return {*loader_, first_, last_}; }
  [[nodiscard]] static std::default_sentinel_t end() { return {}; }

 private:
  data::Loader* loader_;
  std::int64_t first_, last_;
};

}  // namespace trireme
