// DrawnDataset: several data sets as one, whose samples are addressed by their places in an epoch: what a place holds
// may differ from epoch to epoch. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/rows.h"

namespace trireme::data {

/// What a place of an epoch holds.
struct Draw {
  std::size_t part = 0;
  std::int64_t sample = 0, turn = 0;  ///< of the part
};
using Draws = std::vector<Draw>;
using DrawsOf = std::function<Draws(std::int64_t epoch)>;

/// Whether all can be read in rows, and these have the same tensors.
bool have_like_rows(const std::vector<std::shared_ptr<Dataset>>& parts);

class DrawnDataset final : public Dataset, public RowSamples {
 public:
  /// The tensors of the parts are alike. `draws` returns `size` draws, and depends on the epoch alone.
  DrawnDataset(std::vector<std::shared_ptr<Dataset>> parts, std::int64_t size, DrawsOf draws);

  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] nn::DataSpec spec() override { return parts_.front()->spec(); }
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override;
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override;
  std::optional<Sample> get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                 bool augment) override;
  [[nodiscard]] Sample collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices) override;
  /// The places as they are: whoever draws puts them into a random order.
  [[nodiscard]] std::vector<std::int64_t> order(const Shuffle& shuffle) const override;
  /// The parts' samples are counted through.
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return of_all(&Dataset::skipped); }
  [[nodiscard]] std::vector<std::int64_t> oriented() const override { return of_all(&Dataset::oriented); }

  /// Null unless have_like_rows().
  [[nodiscard]] RowSamples* rows() override { return in_rows_ ? this : nullptr; }
  [[nodiscard]] RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const override;
  std::optional<Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                             bool augment) override;
  [[nodiscard]] Sample transform_batch(Sample batch, bool combine) const override;

 private:
  [[nodiscard]] Draw at(std::int64_t index, std::int64_t epoch) const;
  [[nodiscard]] std::vector<std::int64_t> of_all(std::vector<std::int64_t> (Dataset::*list)() const) const;

  std::vector<std::shared_ptr<Dataset>> parts_;
  std::int64_t size_;
  DrawsOf draws_;
  bool in_rows_;
  mutable std::mutex mutex_;
  mutable std::array<std::pair<std::int64_t, Draws>, 2> recent_{{{-1, {}}, {-1, {}}}};  ///< of the last two epochs
};

}  // namespace trireme::data
