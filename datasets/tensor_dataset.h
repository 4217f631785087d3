// TensorDataset: one split in a safetensors file. "labels" [N, ...] is the target; every other tensor [N, ...] is an
// input of its name, such as input_ids [N, T]. The file stays memory-mapped; samples are read from it one by one.
//
// Integers are read as int64, booleans as they are, floating point as float32 (float64 stays). pixel_values
// [N, 3, H, W] can be augmented, and from uint8 it is scaled and normalised like an image. Integer labels [N] or
// [N, T] are classes from 0, or -100 for "does not count"; floating-point labels are the targets of a regression.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/safetensors_file.h"
#include "core/data/bad_samples.h"
#include "core/data/dataset.h"
#include "core/data/rows.h"
#include "datasets/batch_transform.h"

namespace trireme::datasets {

class TensorDataset : public data::RowDataset {
 public:
  /// @param transform its size is replaced by the file's.
  /// @throws DataError: not such a file; wrong dtypes or shapes; no samples; a label below 0 other than -100.
  TensorDataset(const std::string& file, TransformOptions transform, std::uint64_t seed, bool skip_bad, const Log& log);

  [[nodiscard]] std::int64_t size() const override { return size_; }
  /// `classes` is the largest label + 1, or 0 without integer labels.
  [[nodiscard]] nn::DataSpec spec() override { return spec_; }
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override;
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return bad_.list(); }

  [[nodiscard]] data::RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const override;
  /// @throws DataError for a value that is not finite.
  std::optional<data::Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                   bool augment) override;
  [[nodiscard]] data::Sample transform_batch(data::Sample batch, bool combine) const override {
    return (*batch_transform_)(std::move(batch), combine);
  }

  /// Whether the file has pixel_values of uint8, which are scaled and normalised. @throws DataError
  static bool has_raw_images(const std::string& file);
  /// The size of pixel_values; unset when the file has none.
  [[nodiscard]] std::optional<nn::ImageSize> image_size() const;
  /// Whether pixel_values is scaled and normalised.
  [[nodiscard]] bool normalised() const;

 private:
  void add_input(const std::string& name);
  void check_pixels() const;
  void count_classes();
  [[nodiscard]] at::Tensor raw(const std::string& name, std::int64_t index) const;
  [[nodiscard]] at::Tensor value(const nn::SampleTensor& tensor, std::int64_t index) const;
  [[nodiscard]] at::Tensor image(std::int64_t index, const Augmentation& chance) const;

  SafeTensorsFile file_;
  TransformOptions transform_;
  std::int64_t size_ = 0;
  nn::DataSpec spec_;  ///< with the dtypes that samples have
  std::unique_ptr<const BatchTransform> batch_transform_;
  data::BadSamples bad_;
};

}  // namespace trireme::datasets
