#include "core/data/relabel.h"

#include <ATen/ops/index_copy.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/data/class_names.h"
#include "core/data/dataset_wrapper.h"
#include "core/data/rows.h"
#include "core/nn/layers/index_checks.h"

namespace trireme::data {
namespace {

/// Labels [C], one for each class, become as many as there are classes now.
void resize_labels(std::vector<nn::SampleTensor>& targets, std::int64_t classes) {
  for (auto& target : targets)
    if (target.name == nn::kLabels && target.shape.size() == 1) target.shape = {classes};
}

class Relabelled final : public DatasetWrapper, public RowSamples {
 public:
  Relabelled(std::shared_ptr<Dataset> of, std::vector<std::int64_t> new_labels, std::int64_t classes)
      : DatasetWrapper(std::move(of)), new_labels_(std::move(new_labels)), classes_(classes) {}
  [[nodiscard]] nn::DataSpec spec() override {
    auto spec = around().spec();
    resize_labels(spec.targets, classes_);
    return spec;
  }
  std::optional<Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override {
    return renumbered(around().get(index, epoch, augment));
  }
  std::optional<Sample> get_with(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                                 bool augment) override {
    return renumbered(around().get_with(inputs, index, epoch, augment));
  }
  [[nodiscard]] RowSamples* rows() override { return around().rows() != nullptr ? this : nullptr; }
  [[nodiscard]] RowSpec row_spec(const std::vector<std::string>& inputs, bool augment) const override {
    auto spec = rows_->row_spec(inputs, augment);
    resize_labels(spec.targets, classes_);
    return spec;
  }
  std::optional<Sample> read(const std::vector<std::string>& inputs, std::int64_t index, std::int64_t epoch,
                             bool augment) override {
    return renumbered(rows_->read(inputs, index, epoch, augment));
  }
  [[nodiscard]] Sample transform_batch(Sample batch, bool combine) const override {
    return rows_->transform_batch(std::move(batch), combine);
  }

 private:
  std::optional<Sample> renumbered(std::optional<Sample> sample) const {
    if (!sample) return sample;
    const auto labels = sample->targets[nn::kLabels];
    if (labels.dim() == 1) {  // one for each class
      sample->targets.set(nn::kLabels,
                          at::zeros({classes_}, labels.options()).index_copy_(0, at::tensor(new_labels_), labels));
      return sample;
    }
    const auto label = labels.item<std::int64_t>();
    if (label != nn::kNoLabel)
      sample->targets.set(nn::kLabels, at::scalar_tensor(new_labels_.at(static_cast<std::size_t>(label)), at::kLong));
    return sample;
  }
  RowSamples* rows_ = around().rows();    ///< used only when there are rows
  std::vector<std::int64_t> new_labels_;  ///< new label, indexed by the old one
  std::int64_t classes_;
};

}  // namespace

bool are_among(const std::vector<std::string>& classes, const std::vector<std::string>& others) {
  const std::multiset<std::string_view> sorted(others.begin(), others.end());  // there may be 20,000
  return !alike_classes(classes) &&
         std::all_of(classes.begin(), classes.end(), [&](const auto& name) { return sorted.count(name) == 1; });
}

namespace {

/// `new_labels`: of each class of the data, its number among `classes`.
Datasets relabelled(Datasets data, const std::vector<std::int64_t>& new_labels,
                    const std::vector<std::string>& classes) {
  for (auto* split : {&data.train, &data.validation, &data.test})
    if (*split) *split = std::make_shared<Relabelled>(std::move(*split), new_labels, std::ssize(classes));
  auto& spec = data.info.spec;
  spec.class_names = classes;
  spec.classes = std::ssize(classes);
  resize_labels(spec.targets, spec.classes);
  return data;
}

}  // namespace

Datasets relabel(Datasets data, const std::vector<std::string>& classes) {
  TRIREME_CHECK(are_among(data.info.spec.class_names, classes), "{} classes are not among {} classes",
                data.info.spec.class_names.size(), classes.size());
  std::vector<std::int64_t> new_labels;
  for (const auto& name : data.info.spec.class_names)
    new_labels.push_back(std::find(classes.begin(), classes.end(), name) - classes.begin());
  return relabelled(std::move(data), new_labels, classes);
}

Datasets rename_classes(Datasets data, const std::vector<std::string>& classes) {
  auto& spec = data.info.spec;
  const auto* labels = spec.target(nn::kLabels);
  if (labels == nullptr || labels->shape.size() != 1 || classes.size() == spec.class_names.size()) {
    spec.class_names = classes;
    spec.classes = std::ssize(classes);
    return data;
  }
  std::vector<std::int64_t> same(spec.class_names.size());
  std::iota(same.begin(), same.end(), 0);
  return relabelled(std::move(data), same, classes);
}

}  // namespace trireme::data
