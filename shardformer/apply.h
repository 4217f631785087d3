// What a policy's roles do to a model's layers: each gets its slice of the parameters, and a way to compute with it.
//
//   heads, column:     y_r = x W_r^T + b_r            x on every rank; backward sums x's gradient over the ranks
//   row:               y = sum_r (x_r W_r^T) + b      x cut like the outputs of the column before; b on every rank
//   inside:            y_r = dropout(x_r)             the part of the whole's mask that falls on x_r
//   gathered_column:   y = [y_0, y_1, ...]
//   labels:            the same; or y_r alone, for a loss that is computed so (shardformer/label_loss.h)
//   vocabulary:        shardformer/vocabulary.h; labels, of an embedding, too
//
// Cuts are by whole units (a head) and may be uneven: sizes differ by one unit, and a rank may have none of a small
// layer. Traffic a microbatch, in elements of the activations: an all-reduce at a row's end, forward, and one at the
// beginning of heads or a column, backward. With sequence parallelism (shardformer/sequence.h) over the same ranks both
// are an all-gather and a reduce-scatter, the one forward and the other backward.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/group.h"
#include "core/nn/policy.h"
#include "shardformer/sequence.h"

namespace trireme::nn {
class Model;
}

namespace trireme::shardformer {

/// Over how many ranks, and how.
struct Sizes {
  int tensor = 1;
  Sequence mode = Sequence::none;
  int sequence = 1;  ///< of modes with ranks of their own
};

/// Why `policy` does not fit the model, or the model so many ranks: a sentence with the remedy; "" when all fits.
std::string why_not(nn::Model& model, const nn::Policy& policy, const Sizes& sizes);

/// Over which ranks, and how.
struct Groups {
  comm::Group tensor;
  Sequence mode = Sequence::none;
  comm::Group
      sequence{};  ///< of modes with ranks of their own; there gradients of all parameters must be summed over it
  bool labels_apart = false;  ///< in training
  bool overlap = true;        ///< what a mode of sequence parallelism sends travels while products are computed
  [[nodiscard]] Sizes sizes() const { return {tensor.size(), mode, sequence.valid() ? sequence.size() : 1}; }
  [[nodiscard]] bool has_own() const { return mode != Sequence::none && !reuses_tensor(mode); }
  /// The ranks that have slices.
  [[nodiscard]] const comm::Group& slices() const { return reuses_tensor(mode) ? tensor : sequence; }
};

/// Cuts the model's layers over the groups. To be done before the model has memory. @pre why_not() says nothing
void apply(nn::Model& model, const nn::Policy& policy, const Groups& groups);

/// The classes of the model's logits, by the policy's role `labels`; 0: it has none, or they cannot stay apart.
std::int64_t classes_of(nn::Model& model, const nn::Policy& policy);

/// The policy for a kind of our models ("vit"); null: there is none.
const nn::Policy* policy_of(const std::string& kind);
/// The kinds that have one.
std::vector<std::string> kinds_with_policy();

}  // namespace trireme::shardformer
