#include "core/data/relabel.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/data/rows.h"
#include "core/nn/index_checks.h"

namespace trireme::data {
namespace {

class Relabelled final : public Dataset, public RowSamples {
 public:
  Relabelled(std::shared_ptr<Dataset> of, std::vector<std::int64_t> new_labels)
      : of_(std::move(of)), new_labels_(std::move(new_labels)) {}
  [[nodiscard]] std::int64_t size() const override { return of_->size(); }
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    auto sample = of_->get(index, epoch, augment);
    if (sample) renumber(*sample);
    return sample;
  }
  std::optional<Sample> get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                 bool augment) override {
    auto sample = of_->get_with(inputs, index, epoch, augment);
    if (sample) renumber(*sample);
    return sample;
  }
  [[nodiscard]] nn::DataSpec spec() override { return of_->spec(); }
  [[nodiscard]] Sample collate(std::vector<Sample> samples, const std::vector<std::int64_t>& indices) override {
    return of_->collate(std::move(samples), indices);
  }
  [[nodiscard]] std::vector<std::int64_t> order(std::uint64_t seed, std::int64_t epoch) const override {
    return of_->order(seed, epoch);
  }
  [[nodiscard]] std::vector<nn::SampleTensor> combined_targets() const override { return of_->combined_targets(); }
  [[nodiscard]] RowSamples* rows() override { return of_->rows() != nullptr ? this : nullptr; }
  [[nodiscard]] RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const override {
    return of_->rows()->row_spec(inputs, augment);
  }
  std::optional<Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                             bool augment) override {
    auto sample = of_->rows()->read(inputs, index, epoch, augment);
    if (sample) renumber(*sample);
    return sample;
  }
  [[nodiscard]] Sample transform_batch(Sample batch, bool combine) const override {
    return of_->rows()->transform_batch(std::move(batch), combine);
  }
  [[nodiscard]] std::vector<std::int64_t> skipped() const override { return of_->skipped(); }

 private:
  void renumber(Sample& sample) const {
    const auto label = sample.targets[nn::kLabels].item<std::int64_t>();
    if (label == nn::kNoLabel) return;
    sample.targets.set(nn::kLabels, at::scalar_tensor(new_labels_.at(static_cast<std::size_t>(label)), at::kLong));
  }
  std::shared_ptr<Dataset> of_;
  std::vector<std::int64_t> new_labels_;  ///< new label, indexed by the old one
};

}  // namespace

bool is_reordering(const std::vector<std::string>& classes, const std::vector<std::string>& others) {
  return classes != others && std::is_permutation(classes.begin(), classes.end(), others.begin(), others.end());
}

Datasets relabel(Datasets data, const std::vector<std::string>& classes) {
  TRIREME_CHECK(is_reordering(data.info.spec.class_names, classes), "{} classes are not a permutation of {} classes",
                classes.size(), data.info.spec.class_names.size());
  std::vector<std::int64_t> new_labels;
  for (const auto& name : data.info.spec.class_names)
    new_labels.push_back(std::find(classes.begin(), classes.end(), name) - classes.begin());
  for (auto* split : {&data.train, &data.validation, &data.test})
    if (*split) *split = std::make_shared<Relabelled>(std::move(*split), new_labels);
  data.info.spec.class_names = classes;
  return data;
}

}  // namespace trireme::data
