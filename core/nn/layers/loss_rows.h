// LossRows: what a cross-entropy counts, row by row, where the logits of the classes may be on several ranks. The
// losses of logits (chunked_cross_entropy.h) and of what makes them (linear_cross_entropy.h) share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/nn/layers/criterion.h"
#include "core/shard/placement.h"

namespace trireme::nn {

/// With Z the sum of exp(x[c] - m) over all classes, for any m of a row, its loss is
///   of_log log Z  -  sum_k factor_k (x[label_k] - m)  -  spread sum_c w[c] (x[c] - m)
/// and d loss / d x[c] = softmax[c] of_log - factor_k [c is label k] - spread w[c]. See TargetRows.
struct LossRows {
  LossRows() = default;
  /// `mine`: the classes whose logits this rank has, out of `classes`.
  LossRows(const TargetRows& rows, shard::Range mine, std::int64_t classes, double smoothing);
  [[nodiscard]] std::int64_t size() const { return of_log.size(0); }
  [[nodiscard]] LossRows narrow(std::int64_t begin, std::int64_t count) const;
  /// The rows of `scale` times the loss, 0-dim.
  [[nodiscard]] LossRows operator*(const at::Tensor& scale) const;

  /// Writes the sums over this rank's classes that the loss is made of to `sums`, [3, rows]: of the exponentials, and
  /// the other two terms without their sign. `shifted`: x - m [rows, classes of this rank], which become their
  /// exponentials.
  void add_up(at::Tensor shifted, const at::Tensor& sums) const;
  /// The loss of all rows, 0-dim, from the sums over all ranks.
  [[nodiscard]] at::Tensor loss(const at::Tensor& sums) const;
  /// Makes the gradient of this rank's logits from `softmax_of_log`, of which it is the first term, in its memory.
  void complete_gradient(at::Tensor softmax_of_log) const;

  at::Tensor column;           ///< int64 [rows, K]: the labels among this rank's classes; 0 for the others
  at::Tensor factors;          ///< [rows, K]; 0 for the others
  at::Tensor of_log;           ///< [rows]
  at::Tensor spread, weights;  ///< [rows], [classes of this rank]; undefined without label smoothing
};

/// What the loss of N rows needs of the logits on all ranks.
struct RowSums {
  /// `options`: those of the results.
  RowSums(std::int64_t rows, const at::TensorOptions& options);
  /// Takes this rank's logits of the rows from `begin`.
  void find_largest(const at::Tensor& logits, std::int64_t begin);

  at::Tensor largest;  ///< [N]: m of LossRows
  at::Tensor sums;     ///< [3, N]: by LossRows::add_up()
};

/// Calls use(first row, number of rows) for parts of logits [rows, classes] that stay in a core's cache in `dtype`; on
/// a GPU for larger ones, which only bound the memory of a conversion.
void for_row_chunks(const at::Tensor& logits, at::ScalarType dtype,
                    const std::function<void(std::int64_t begin, std::int64_t rows)>& use);

}  // namespace trireme::nn
