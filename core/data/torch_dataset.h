// from_torch(): a data set of torch::data as one of Trireme, so that each rank reads its own part of it.
#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/data/dataset.h"

namespace trireme::data {

/// A set of torch::data::Example: `data` is the model's only input, `target` the labels of the task. Examples have
/// equal shapes. Its get() is called by several threads at once, and the order is the loader's: torch's samplers are
/// not used. `classes`: labels are 0 to classes - 1; 0: they are no classes. @throws UsageError when the set does not
/// know its size
template <class Torch>
requires requires(Torch& set) {
  set.get(0).data;
  set.get(0).target;
}
std::shared_ptr<Dataset> from_torch(Torch set, std::int64_t classes = 0, std::string input = "inputs") {
  class FromTorch final : public Dataset {
   public:
    FromTorch(Torch set, std::int64_t classes, std::string input)
        : set_(std::move(set)), classes_(classes), input_(std::move(input)) {
      TRIREME_REQUIRE(set_.size().has_value(), "from_torch(): the data set of torch::data does not know its size");
    }
    [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(*set_.size()); }
    std::optional<Sample> get(std::int64_t index, std::int64_t /*epoch*/, bool /*augment*/) override {
      auto example = set_.get(static_cast<std::size_t>(index));
      return Sample{{{input_, std::move(example.data)}}, {{nn::kLabels, std::move(example.target)}}};
    }
    [[nodiscard]] nn::DataSpec spec() override {
      auto spec = Dataset::spec();
      spec.classes = classes_;
      return spec;
    }

   private:
    Torch set_;
    std::int64_t classes_;
    std::string input_;
  };
  return std::make_shared<FromTorch>(std::move(set), classes, std::move(input));
}

}  // namespace trireme::data
