// BatchMaker: how the samples of a step are read and become the batches of its microbatches. It reads what this rank
// needs of a sample, puts the samples together, and checks the result against the data set's spec, on which empty
// batches and ranks that read only some inputs rely. Thread-safe.
//
//   start() -> read() each sample -> upload() -> collect() -> finish() each microbatch
//   and with rows from other ranks: ... upload() -> SampleExchange::exchange() -> collect() -> finish()
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batch.h"
#include "core/data/dataset.h"
#include "core/data/loader_options.h"
#include "core/data/rows.h"
#include "core/shard/placement.h"

namespace trireme::data {

/// Copies that may still be on their way. On the CPU, and by default, there is nothing to wait for.
class PendingCopies {
 public:
  /// Orders the current stream of this thread after the copies, and keeps their memory until what that stream then does
  /// is done. The host does not wait.
  void wait() const;

 private:
  friend class DeviceCopy;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Takes the samples of a step to the device ahead of their use, on a stream of its own, so that neither the host nor
/// the stream that computes waits for the copy.
class DeviceCopy {
 public:
  explicit DeviceCopy(c10::Device device);
  /// Replaces each tensor by its copy on the device; on the CPU they stay what they are. Copies of pinned tensors are
  /// asynchronous. For use by any thread.
  [[nodiscard]] PendingCopies start(const std::vector<at::Tensor*>& tensors) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

/// The samples of one step while they are read. Workers write to different positions concurrently.
struct StepSamples {
  std::vector<std::int64_t> ids{};  ///< of the samples; after read(), of those that stand in for unreadable ones
  std::vector<std::optional<Sample>> samples{};  ///< by position, of a data set without rows; unset: left out
  at::Tensor rows{};                             ///< uint8 [ids, bytes], of a data set with rows
  bool repeats_first = false;                    ///< `rows` has a row more, the first one again
  PendingCopies copies{};                        ///< of `rows` to the device
};
/// The id of a sample that is left out.
inline constexpr std::int64_t kLeftOut = -1;

/// A microbatch without the steps that belong on the device. It has tensors, or rows of a data set with rows.
struct RawBatch {
  std::vector<std::int64_t> ids{};
  Sample tensors{};
  at::Tensor rows{};                       ///< with BatchMaker::combines(), one more than ids
  std::vector<std::int64_t> kept{};        ///< the rows that are not left out, if some are
  std::int64_t elements = 0, padding = 0;  ///< as of StepBatch
  PendingCopies copies{};
};

class BatchMaker {
 public:
  /// With an exchange, it also reads inputs that are not needed here, for other ranks.
  /// @throws UsageError for a data set with combined targets and without rows
  BatchMaker(std::shared_ptr<Dataset> dataset, LoaderOptions options);

  /// Each sample is combined with the next one, so a batch needs one more sample than it has.
  [[nodiscard]] bool combines() const { return combines_; }
  /// Null for a data set without rows.
  [[nodiscard]] const RowLayout* layout() const { return layout_ ? &*layout_ : nullptr; }

  /// Room for these samples. `repeat_first`: the first one is also the last one.
  [[nodiscard]] StepSamples start(std::vector<std::int64_t> ids, bool repeat_first) const;
  /// Reads sample `id` to position `at`, or returns false if it is skipped. @throws DataError
  bool read(StepSamples& step, std::size_t at, std::int64_t id, std::int64_t epoch) const;
  /// Starts the copy of all rows to the device, when all are read.
  void upload(StepSamples& step) const;
  /// The samples of these ranges of positions, without those that are left out.
  /// @throws DataError when the samples do not fit together
  [[nodiscard]] std::vector<RawBatch> collect(StepSamples step, const std::vector<shard::Range>& micro) const;
  /// Inputs, targets and sample ids of the batch, on the device. @throws DataError when they differ from the spec
  [[nodiscard]] Batch finish(RawBatch raw) const;

 private:
  [[nodiscard]] bool needs(const nn::SampleTensor& input) const;
  [[nodiscard]] RawBatch rows_of(const StepSamples& step, const shard::Range& positions) const;
  [[nodiscard]] RawBatch collate(StepSamples& step, const shard::Range& positions) const;
  [[nodiscard]] std::int64_t varying_elements(const nn::NamedTensors& inputs) const;
  [[nodiscard]] Sample transformed(const RawBatch& raw) const;
  [[nodiscard]] Sample no_samples() const;
  void check(const Sample& made, const std::vector<std::int64_t>& ids) const;
  void add_remote_inputs(Batch& batch, std::int64_t size) const;

  std::shared_ptr<Dataset> dataset_;
  LoaderOptions options_;
  RowSamples* rows_;
  bool combines_;
  DeviceCopy device_copy_;
  nn::DataSpec spec_;
  std::vector<nn::SampleTensor> inputs_;  ///< those that this rank needs
  std::vector<std::string> read_names_;   ///< of the inputs that it reads
  std::optional<RowLayout> layout_;
};

}  // namespace trireme::data
