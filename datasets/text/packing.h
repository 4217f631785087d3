// Samples that hold several documents: their tokens do not attend to those of other documents, and their positions
// begin at 0 in each. So a model computes for each document what it would compute for it alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/nn/data_spec.h"
#include "core/nn/named_tensors.h"

namespace trireme::datasets {

/// Best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973): the longest sequence first, each into
/// the block with the least space left that holds it. Returns the sequences of each block, by their indices.
/// @pre no length is above `block`
std::vector<std::vector<std::int64_t>> pack_best_fit(std::span<const std::int64_t> lengths, std::int64_t block);

/// The inputs that say where documents are in samples of `block` tokens.
std::vector<nn::SampleTensor> document_inputs(std::int64_t block);

/// The values of document_inputs(): document_ids, which are 1, 2, ..., and 0 behind the last document, and
/// position_ids.
class DocumentInputs {
 public:
  explicit DocumentInputs(std::int64_t block);
  /// The next tokens are a document.
  void add(std::int64_t tokens);
  /// Sets those of the inputs that are wanted.
  void set_in(nn::NamedTensors& inputs, const std::vector<std::string>& wanted) const;

 private:
  at::Tensor ids_, positions_;  ///< int64 [block]
  std::int64_t documents_ = 0, tokens_ = 0;
};

}  // namespace trireme::datasets
