// Dataset: samples by index, and how they are put together to a batch. Thread-safe: the loader's workers call get()
// and collate() concurrently.
//
// A data set whose samples all have the same shapes can also serve them as rows (rows.h), which the loader then takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/data_spec.h"
#include "core/nn/named_tensors.h"

namespace trireme::data {

/// Without the batch dimension. Floating-point tensors are float32, or float64 from a float64 source.
struct Sample {
  nn::NamedTensors inputs;   ///< what the model reads: {{"pixel_values", [3, H, W]}}
  nn::NamedTensors targets;  ///< what the loss reads: {{"labels", int64 []}}
};

/// {{"labels", label}}: the targets of a sample with one class.
nn::NamedTensors class_label(std::int64_t label);

class RowSamples;

/// An epoch in shuffled order.
struct Shuffle {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t global_batch = 0;  ///< consecutive samples that a step takes, of all ranks; 0: unknown
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Augmentation depends only on (seed, epoch, index); there is none unless `augment` is true.
  /// @throws DataError that names the file; with on_bad_sample = skip, returns nullopt instead.
  virtual std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) = 0;
  /// The same with only these of its inputs, for ranks that need no others. By default the whole sample is read.
  virtual std::optional<Sample> get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                         bool augment);
  /// The tensors of the samples. By default they are those of the first readable sample, of fixed shape. Override it
  /// when a size varies: ranks of a pipeline that read no inputs rely on it.
  [[nodiscard]] virtual nn::DataSpec spec();
  /// Makes a batch of at least one sample: tensors with a batch dimension in front. By default they are stacked, which
  /// needs equal shapes; collate_padded() is for others. `indices`: of the samples, for errors. @throws DataError
  [[nodiscard]] virtual Sample collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices);
  /// The samples as rows; null when their shapes differ, or when there is no such way.
  [[nodiscard]] virtual RowSamples* rows() { return nullptr; }
  /// The targets that each training sample gets when it is combined with another one (mixup; RowSamples); empty:
  /// samples are not combined. A sample is combined with the next one of its global batch, and the last one with the
  /// first: this depends on the batch, but not on how it is divided over ranks and microbatches.
  [[nodiscard]] virtual std::vector<nn::SampleTensor> combined_targets() const { return {}; }
  /// The sample indices of a shuffled epoch, in order: a permutation of 0 to size() - 1 that depends on its arguments
  /// alone. By default each permutation is equally likely; override it for samples that are read faster in another
  /// order, or that are of like lengths in each step.
  [[nodiscard]] virtual std::vector<std::int64_t> order(const Shuffle& shuffle) const;
  /// The indices of the samples that get() has found unreadable so far.
  [[nodiscard]] virtual std::vector<std::int64_t> skipped() const { return {}; }
  /// The indices of the samples, of those read so far, whose image has an EXIF orientation that is not upright.
  [[nodiscard]] virtual std::vector<std::int64_t> oriented() const { return {}; }
};

/// How collate_padded() fills up shorter samples.
struct Padding {
  std::map<std::string, double> values;  ///< by tensor: {{"input_ids", 0}, {"labels", -100}}; others: 0
  std::int64_t multiple = 1;             ///< sizes are rounded up to a multiple, so that fewer shapes occur
};
/// For a data set's collate(): each dimension whose size differs between the samples, or that the spec says varies, is
/// padded at its end to the largest size. @throws DataError when the samples have different tensors
Sample collate_padded(std::vector<Sample> samples, const std::vector<std::int64_t>& indices, const nn::DataSpec& spec,
                      const Padding& padding);

}  // namespace trireme::data
