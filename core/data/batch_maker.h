// BatchMaker: how the samples of a microbatch become tensors. It reads what this rank needs of a sample, checks it
// against the data set's spec, on which empty batches and ranks that read only some inputs rely, and puts the samples
// together. Thread-safe.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batch.h"
#include "core/data/dataset.h"

namespace trireme::data {

class BatchMaker {
 public:
  struct Options {
    std::optional<std::vector<std::string>> needed{};  ///< LoaderOptions::needed
    bool strict = false;                               ///< LoaderOptions::strict
    at::ScalarType dtype = at::kFloat;                 ///< of floating-point tensors
    bool pinned = false;                               ///< in pinned memory
    bool combined = false;                             ///< samples are combined, see Dataset::combined_targets()
  };
  BatchMaker(std::shared_ptr<Dataset> dataset, Options options);

  /// Nullopt for a sample that is skipped. @throws DataError
  std::optional<Sample> read(std::int64_t index, std::int64_t epoch, bool augment);
  /// Inputs, targets and sample ids of a batch, which may be empty. `ids`: the samples' indices.
  /// @throws DataError when the samples do not fit together, or differ from the spec
  Batch make(std::vector<Sample> samples, const std::vector<std::int64_t>& ids);

 private:
  [[nodiscard]] bool reads(const nn::SampleTensor& input) const;
  void check_sample(const Sample& sample, std::int64_t index) const;
  void add_remote_inputs(Batch& batch, std::int64_t size) const;

  std::shared_ptr<Dataset> dataset_;
  Options options_;
  nn::DataSpec spec_;
  std::vector<nn::SampleTensor> inputs_;  ///< those that this rank reads
  std::vector<std::string> names_;        ///< of inputs_
};

}  // namespace trireme::data
