#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "core/base/text.h"
#include "core/data/class_names.h"
#include "core/nn/data_spec.h"
#include "core/nn/layers/index_checks.h"
#include "tasks/class_labels.h"

namespace trireme::tasks {
namespace {

constexpr std::size_t kListedClasses = 30;  ///< on the screen; of more classes, those with the lowest F1
constexpr std::size_t kMatrixClasses = 12;  ///< the most classes whose matrix is on the screen

/// The numbers of one class. A quotient of zero samples is unset.
struct ClassScore {
  std::int64_t samples = 0;    ///< with this label
  std::int64_t predicted = 0;  ///< as this class
  std::int64_t right = 0;
  std::int64_t confused = 0;  ///< samples that were taken for `confused_with`, the most frequent wrong class
  std::size_t confused_with = 0;

  static std::optional<double> quotient(std::int64_t part, std::int64_t of) {
    return of == 0 ? std::nullopt : std::optional(static_cast<double>(part) / static_cast<double>(of));
  }
  [[nodiscard]] std::optional<double> accuracy() const { return quotient(right, samples); }
  [[nodiscard]] std::optional<double> precision() const { return quotient(right, predicted); }
  [[nodiscard]] std::optional<double> f1() const { return quotient(2 * right, samples + predicted); }
};

std::string percent(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f} %", 100 * *value) : std::string("-");
}

nlohmann::json or_null(const std::optional<double>& value) { return value ? nlohmann::json(*value) : nlohmann::json(); }

class ConfusionMatrix final : public TaskReport {
 public:
  ConfusionMatrix(std::int64_t classes, const std::vector<std::string>& names)
      : classes_(classes), names_(data::distinct_names(names)) {
    for (auto i = static_cast<std::int64_t>(names_.size()); i < classes; ++i) names_.push_back(std::to_string(i));
  }

  /// [actual][predicted], with a last column for predictions that are no class of the data: a program's model may have
  /// more outputs.
  [[nodiscard]] std::int64_t entries() const override { return classes_ * (classes_ + 1); }
  [[nodiscard]] at::Tensor measure(const nn::Tensors& outputs, const data::Batch& batch) const override {
    const auto actual = batch.targets[nn::kLabels].flatten();
    const auto predicted = outputs.front().argmax(-1).flatten().clamp_max(classes_);
    const auto valid = actual.ne(nn::kNoLabel);
    const auto at = (actual * (classes_ + 1) + predicted) * valid;
    return at::zeros({entries()}, valid.options().dtype(at::kDouble)).scatter_add_(0, at, valid.to(at::kDouble));
  }

  [[nodiscard]] std::string text(const at::Tensor& totals) const override {
    const auto scores = scores_of(totals);
    auto listed = std::vector<std::size_t>(scores.size());
    std::iota(listed.begin(), listed.end(), 0U);
    std::string out;
    if (listed.size() > kListedClasses) {
      std::stable_sort(listed.begin(), listed.end(),
                       [&](auto a, auto b) { return scores[a].f1().value_or(2) < scores[b].f1().value_or(2); });
      listed.resize(kListedClasses);
      out = fmt::format("the {} of {} classes with the lowest F1\n", kListedClasses, text::thousands(classes_));
    }
    std::vector<std::vector<std::string>> rows{
        {"class", "samples", "accuracy", "precision", "F1", "most often taken for"}};
    for (const auto i : listed) {
      const auto& of = scores[i];
      rows.push_back({names_[i], text::thousands(of.samples), percent(of.accuracy()), percent(of.precision()),
                      percent(of.f1()),
                      of.confused == 0 ? "-" : fmt::format("{} ({})", names_[of.confused_with], of.confused)});
    }
    out += text::columns(rows, {false, true, true, true, true, false});
    return scores.size() > kMatrixClasses ? out : out + "\n" + matrix_text(totals);
  }

  [[nodiscard]] nlohmann::json json(const at::Tensor& totals) const override {
    nlohmann::json out{{"classes", names_}};
    const auto scores = scores_of(totals);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const auto& of = scores[i];
      auto& row = out["matrix"].emplace_back(nlohmann::json::array());
      for (std::size_t j = 0; j < scores.size(); ++j) row.push_back(count(totals, i, j));
      out["by_class"].push_back({{"class", names_[i]},
                                 {"samples", of.samples},
                                 {"predicted", of.predicted},
                                 {"accuracy", or_null(of.accuracy())},
                                 {"precision", or_null(of.precision())},
                                 {"f1", or_null(of.f1())}});
    }
    return out;
  }

 private:
  [[nodiscard]] std::int64_t count(const at::Tensor& totals, std::size_t actual, std::size_t predicted) const {
    return static_cast<std::int64_t>(
        totals.const_data_ptr<double>()[actual * static_cast<std::size_t>(classes_ + 1) + predicted]);
  }
  [[nodiscard]] std::vector<ClassScore> scores_of(const at::Tensor& totals) const {
    std::vector<ClassScore> scores(static_cast<std::size_t>(classes_));
    for (std::size_t i = 0; i < scores.size(); ++i)
      for (std::size_t j = 0; j <= scores.size(); ++j) {
        const auto n = count(totals, i, j);
        scores[i].samples += n;
        if (j == scores.size()) continue;
        scores[j].predicted += n;
        if (i == j)
          scores[i].right = n;
        else if (n > scores[i].confused) {
          scores[i].confused = n;
          scores[i].confused_with = j;
        }
      }
    return scores;
  }
  [[nodiscard]] std::string matrix_text(const at::Tensor& totals) const {
    std::vector<std::vector<std::string>> rows{{"actual, by predicted class"}};
    for (std::size_t i = 0; i < names_.size(); ++i) {
      rows.front().push_back(std::to_string(i));
      auto& row = rows.emplace_back(std::vector{fmt::format("{} {}", i, names_[i])});
      for (std::size_t j = 0; j < names_.size(); ++j) row.push_back(std::to_string(count(totals, i, j)));
    }
    std::vector<bool> right(rows.front().size(), true);
    right.front() = false;
    return text::columns(rows, right);
  }

  std::int64_t classes_;
  std::vector<std::string> names_;  ///< one for each class, all different
};

}  // namespace

std::unique_ptr<const TaskReport> confusion_matrix(std::int64_t classes, const std::vector<std::string>& names) {
  return std::make_unique<ConfusionMatrix>(classes, names);
}

}  // namespace trireme::tasks
