// TensorDataset: one split in a safetensors file with `pixel_values` [N, 3, H, W] (float64, float32, float16, bfloat16:
// used without preprocessing; uint8: scaled and normalised like images) and `labels` [N] (int64 or int32, from 0). The
// file stays memory-mapped; samples are read from it one by one.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/base/safetensors_file.h"
#include "core/data/bad_samples.h"
#include "core/data/dataset.h"
#include "core/data/transform.h"

namespace trireme::data {

class TensorDataset : public Dataset {
 public:
  /// @param transform its size is replaced by the file's.
  /// @throws DataError: not such a file; wrong names, dtypes or shapes; no samples; a label below 0.
  TensorDataset(const std::string& file, TransformOptions transform, std::uint64_t seed, bool skip_bad, const Log& log);

  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  /// @throws DataError for a value that is not finite.
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override;
  [[nodiscard]] std::int64_t label(std::int64_t index) override { return labels_.at(static_cast<std::size_t>(index)); }
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return bad_.list(); }
  [[nodiscard]] std::vector<at::Tensor> empty_inputs() override;

  [[nodiscard]] std::int64_t image_size() const { return transform_.size; }
  [[nodiscard]] std::int64_t largest_label() const;
  [[nodiscard]] bool normalised() const { return dtype_ == at::kByte; }

 private:
  Sample read(std::int64_t index, std::int64_t epoch, bool augment) const;
  at::Tensor pixels(std::int64_t index) const;
  void read_labels();

  SafeTensorsFile file_;
  TransformOptions transform_;
  std::uint64_t seed_;
  at::ScalarType dtype_;  ///< dtype in the file
  std::vector<std::int64_t> labels_;
  BadSamples bad_;
};

}  // namespace trireme::data
