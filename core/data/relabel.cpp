#include "core/data/relabel.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/error.h"

namespace trireme::data {
namespace {

class Relabelled final : public Dataset {
 public:
  Relabelled(std::shared_ptr<Dataset> of, std::vector<std::int64_t> numbers)
      : of_(std::move(of)), numbers_(std::move(numbers)) {}
  [[nodiscard]] std::int64_t size() const override { return of_->size(); }
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    auto sample = of_->get(index, epoch, augment);
    if (sample) sample->label = number_of(sample->label);
    return sample;
  }
  [[nodiscard]] std::int64_t label(std::int64_t index) override { return number_of(of_->label(index)); }
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return of_->skipped(); }
  [[nodiscard]] std::vector<at::Tensor> empty_inputs() override { return of_->empty_inputs(); }

 private:
  [[nodiscard]] std::int64_t number_of(std::int64_t label) const { return numbers_[static_cast<std::size_t>(label)]; }
  std::shared_ptr<Dataset> of_;
  std::vector<std::int64_t> numbers_;  ///< new label, indexed by the old one
};

}  // namespace

bool is_reordering(const std::vector<std::string>& classes, const std::vector<std::string>& others) {
  return classes != others && std::is_permutation(classes.begin(), classes.end(), others.begin(), others.end());
}

Datasets relabel(Datasets data, const std::vector<std::string>& classes) {
  TRIREME_CHECK(is_reordering(data.info.classes, classes), "{} classes are not a permutation of {} classes",
                classes.size(), data.info.classes.size());
  std::vector<std::int64_t> numbers;
  for (const auto& name : data.info.classes)
    numbers.push_back(std::find(classes.begin(), classes.end(), name) - classes.begin());
  for (auto* split : {&data.train, &data.validation, &data.test})
    if (*split) *split = std::make_shared<Relabelled>(std::move(*split), numbers);
  data.info.classes = classes;
  return data;
}

}  // namespace trireme::data
