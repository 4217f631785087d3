// DatasetWrapper: a data set that changes another one. A class derived from it overrides what it changes; everything
// else is the other data set's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/data/dataset.h"

namespace trireme::data {

class DatasetWrapper : public Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return of_->size(); }
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    return of_->get(index, epoch, augment);
  }
  std::optional<Sample> get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                 bool augment) override {
    return of_->get_with(inputs, index, epoch, augment);
  }
  [[nodiscard]] nn::DataSpec spec() override { return of_->spec(); }
  [[nodiscard]] Sample collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices) override {
    return of_->collate(std::move(samples), indices);
  }
  [[nodiscard]] RowSamples* rows() override { return of_->rows(); }
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override { return of_->combined_targets(); }
  [[nodiscard]] std::vector<std::int64_t> order(const Shuffle& shuffle) const override { return of_->order(shuffle); }
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return of_->skipped(); }
  [[nodiscard]] std::vector<std::int64_t> oriented() const override { return of_->oriented(); }

 protected:
  /// @pre not null
  explicit DatasetWrapper(std::shared_ptr<Dataset> of) : of_(std::move(of)) {}
  [[nodiscard]] Dataset& around() { return *of_; }
  [[nodiscard]] const Dataset& around() const { return *of_; }

 private:
  std::shared_ptr<Dataset> of_;
};

}  // namespace trireme::data
