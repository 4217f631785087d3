// Rows: the samples of a step as rows of one uint8 tensor, so that one copy takes them to a device and one exchange to
// other ranks. This needs samples whose tensors all have the same shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/data/dataset.h"

namespace trireme::data {

/// The tensors of a raw sample, without the batch dimension. No size varies.
struct RowSpec {
  std::vector<nn::SampleTensor> inputs{}, targets{};
};

/// Those of these inputs that a data set has, and all targets: of samples that are not transformed.
RowSpec row_spec_of(const nn::DataSpec& spec, const std::vector<std::string>& inputs);

/// How a data set (Dataset::rows()) serves raw samples of equal shapes: the loader's workers write each into its row of
/// the step's tensor, in pinned memory for a GPU, and the steps that need no decoder follow for a whole batch on the
/// device that computes. Thread-safe.
class RowSamples {
 public:
  virtual ~RowSamples() = default;
  /// The tensors of read() with these arguments.
  [[nodiscard]] virtual RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const = 0;
  /// A raw sample with these of its inputs, and with all targets; nullopt if it is skipped. Augmentation depends only
  /// on (seed, epoch, index). @throws DataError
  virtual std::optional<Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                     bool augment) = 0;
  /// Makes a batch of raw samples [B, ...] to what Dataset::spec() says. The tensors can have any strides and be on any
  /// device, which this must not synchronise with the host. `combine`: the batch has one sample more than the result,
  /// in which each sample is combined with the next one and has Dataset::combined_targets().
  [[nodiscard]] virtual Sample transform_batch(Sample batch, bool combine) const = 0;
};

/// A data set that is read in rows; its single samples are raw ones that are transformed alone.
class RowDataset : public Dataset, public RowSamples {
 public:
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override;
  std::optional<Sample> get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                 bool augment) override;
  [[nodiscard]] RowSamples* rows() override { return this; }
};

/// Where the parts of a sample are in its row: the sample's index, the targets, then the inputs, each at a multiple of
/// 16 bytes.
class RowLayout {
 public:
  /// `first`: names of inputs whose bytes come before those of the others.
  RowLayout(const RowSpec& spec, const std::vector<std::string>& first);

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }        ///< of a row
  [[nodiscard]] std::int64_t first_bytes() const { return first_; }  ///< of its part up to the last of `first`
  /// Writes a sample into row `at` of uint8 [N, bytes()]; unset: only the id.
  /// @throws DataError when a tensor is not as the spec says
  void write(const std::optional<Sample>& sample, std::int64_t id, const at::Tensor& rows, std::int64_t at) const;
  /// The tensors of the rows in the spec's order, [N, ...] each, as views. Rows that end at first_bytes() have no other
  /// inputs.
  [[nodiscard]] Sample tensors(const at::Tensor& rows) const;
  /// The samples' indices, int64 [N], as a view.
  [[nodiscard]] static at::Tensor ids(const at::Tensor& rows);

 private:
  struct Field {
    nn::SampleTensor tensor;
    std::int64_t begin = 0, bytes = 0;
  };
  /// Puts a tensor at the end of the row.
  [[nodiscard]] Field append(const nn::SampleTensor& tensor);
  static void write(const Field& field, const at::Tensor& value, std::int64_t id, unsigned char* row);

  std::vector<Field> targets_, inputs_;
  std::int64_t bytes_ = 0, first_ = 0;
};

}  // namespace trireme::data
