// A validation split that is taken from the training samples of data that have none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/log.h"
#include "datasets/datasets.h"

namespace trireme::datasets {

/// Numbers of samples, ascending.
struct HeldOut {
  std::vector<std::int64_t> train, validation;
};
using LabelOf = std::function<std::int64_t(std::int64_t)>;  ///< the class of a sample, from 0
/// Stratified: the samples of each class are put into an order by the seed. With validation_share, that part of them,
/// rounded, is for validation, of two or more samples at least one and never all. With folds they are dealt out in
/// turns, from one class to the next, so that each sample is in one fold, and folds differ by at most one sample, and
/// by at most one of each class. A single sample of a class is always for training. @pre options.taken_by()
HeldOut hold_out(std::int64_t samples, const LabelOf& label_of, const HeldOutOptions& options);

/// For data that have a validation split, `because` there is one. @throws ConfigError when the options take another
void refuse_held_out(const HeldOutOptions& options, const std::string& because, const data::OpenContext& context);

/// What is split, for messages.
struct HeldOutSource {
  std::string path;
  const char* samples;             ///< "images"
  const nn::SampleTensor& labels;  ///< classes are int64 []
  const std::vector<std::string>& classes;
  const Log& log;
};
/// hold_out() as the options say; `label_of` is 0 for samples with other targets than one class. Says which
/// classes have no sample for validation; `digest`, that of the training samples, gets the options. @throws DataError
/// when there is none for validation. @pre options.taken_by()
HeldOut hold_out_as(const HeldOutOptions& options, std::int64_t samples, const LabelOf& label_of,
                    const HeldOutSource& source, std::string& digest);

/// `samples`: what is split, "images".
template <class T>
Fields<T>& add_held_out_fields(Fields<T>& table, const std::string& samples) {
  using O = HeldOutOptions;
  return table
      .add("validation_share", &O::validation_share,
           fmt::format(
               "The part of the training {} of each class that is the validation split, for data without one; it is "
               "drawn by split_seed.",
               samples),
           {.above = 0, .below = 1})
      .add("folds", &O::folds,
           fmt::format("For cross-validation, in place of validation_share: the training {0} of each class are divided "
                       "into this many parts, drawn by split_seed, and the one of fold is the validation split. The "
                       "only sample of a class is in none.",
                       samples),
           {.min = 2, .max = 1000})
      .add("fold", &O::fold, "The part that is the validation split, from 0 to folds - 1; it needs folds.",
           {.min = 0, .max = 999})
      .add("split_seed", &O::split_seed, "Seed by which validation_share or folds are drawn; it needs one of them.",
           {.min = 0})
      .rule([](const O& o, const CheckedSection& section) {
        if (o.validation_share && o.folds)
          section.fail("folds", "takes a validation split, and so does validation_share; remove one of the two");
        if (o.fold >= o.folds.value_or(1))
          section.fail("fold", o.folds ? fmt::format("must be less than folds = {}", *o.folds)
                                       : std::string("has no effect without folds; remove it, or set that"));
        if (o.taken_by() == nullptr && o.split_seed != O{}.split_seed)
          section.fail("split_seed", "has no effect without validation_share or folds; remove it, or set one of them");
      });
}

}  // namespace trireme::datasets
