// The difference between two records of a training: a value that is not finite in one of them alone is a difference.
#include "core/train/report/record.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "core/checkpoint/formats/safetensors.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::train {
namespace {

using data::testing_tools::Folder;

/// A record of one step of two tensors.
struct Record {
  double loss = 0.5, gradient = 0.25, weight = 2;  ///< of the second tensor's only element
  void write(const Folder& folder, const std::string& name) const {
    folder.write(name + "/losses.json", fmt::format("[{}]", loss));
    const auto tensors = [&](const std::string& file, double value) {
      checkpoint::write_safetensors(folder.path(name + "/" + file + ".safetensors"),
                                    {{"a", at::full({3}, 1, at::kDouble)}, {"b", at::full({1}, value, at::kDouble)}});
    };
    tensors("start", 1);
    tensors("gradients-1", gradient);
    tensors("weights", weight);
  }
};

Difference between(const Record& got, const Record& expected, bool coarse = false) {
  const Folder folder;
  got.write(folder, "got");
  expected.write(folder, "expected");
  return compare_records(folder.path("got"), folder.path("expected"), coarse);
}

TEST(Record, NonFiniteValuesDiffer) {
  const auto same = between({}, {});
  EXPECT_EQ(same.loss + same.gradient.value + same.weight.value, 0);
  for (const double bad : {std::nan(""), double{INFINITY}, double{-INFINITY}})
    for (const bool coarse : {false, true})
      for (const bool in_reference : {false, true}) {
        const auto compare = [&](const Record& odd) {
          return in_reference ? between({}, odd, coarse) : between(odd, {}, coarse);
        };
        const auto gradient = compare({.gradient = bad});
        EXPECT_EQ(gradient.gradient.value, INFINITY) << bad << coarse << in_reference;
        EXPECT_EQ(gradient.gradient.of, "b");
        EXPECT_EQ(gradient.weight.value, 0);
        const auto weight = compare({.weight = bad});
        EXPECT_EQ(weight.weight.value, INFINITY) << bad << coarse << in_reference;
        EXPECT_EQ(weight.weight.of, "b");
      }
}

// A step that the loss scale skips in both records is not compared; without a loss scale a NaN is a difference.
TEST(Record, NonFiniteInBothIsASkippedStepOnlyInHalfPrecision) {
  const Record odd{.gradient = std::nan("")};
  EXPECT_EQ(between(odd, odd, true).gradient.value, 0);
  EXPECT_EQ(between(odd, odd, false).gradient.value, INFINITY);
}

}  // namespace
}  // namespace trireme::train
