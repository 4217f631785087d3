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
/// Stratified: of each class, `share` of its samples, rounded, are for validation, drawn by `seed`; of two or more
/// samples at least one, and never all.
HeldOut hold_out(std::int64_t samples, const LabelOf& label_of, double share, std::uint64_t seed);

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
/// when there is none for validation. @pre options.validation_share
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
      .add("split_seed", &O::split_seed, "Seed by which validation_share is drawn; it needs that.", {.min = 0})
      .rule([](const O& o, const CheckedSection& section) {
        if (!o.validation_share && o.split_seed != O{}.split_seed)
          section.fail("split_seed", "has no effect without validation_share; remove it, or set that");
      });
}

}  // namespace trireme::datasets
