// Sentences of varying length with labels of every task, a reference training on them, and the same in a layout.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "core/nn/policy.h"
#include "tasks/tasks.h"
#include "tests/parity/layout.h"

namespace trireme::tests {

constexpr std::int64_t kTokenIds = 7, kLongest = 9, kSentences = 11;

/// Samples of 1 to 9 tokens: "input_ids" and an "attention_mask" of ones. In some samples all labels of tokens count,
/// in others none.
class Sentences : public data::Dataset {
 public:
  explicit Sentences(std::string task) : task_(std::move(task)) {}
  std::int64_t size() const override { return kSentences; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t epoch, bool augment) override;
  nn::DataSpec spec() override;
  data::Sample collate(std::vector<data::Sample> samples, const std::vector<std::int64_t>& indices) override;

 private:
  std::string task_;
};

/// The built-in task of this name, for Sentences.
std::shared_ptr<const Task> task_for(const std::string& name);

using MakeModel = std::function<std::shared_ptr<nn::Model>()>;

struct TrainedOnSentences {
  std::vector<double> losses;
  Named weights;
  std::set<std::string> frozen;  ///< names of the weights that must not change at all
};
/// Trains in one process, each global batch at once, by plain gradient descent and the loss's formula. `data`: in the
/// place of Sentences, with as many classes.
TrainedOnSentences train_by_hand(const MakeModel& make_model, const std::string& task,
                                 std::shared_ptr<data::Dataset> data = nullptr);

struct TaskLayout {
  std::string name, plugin, keys;
  int inner = 1;  ///< number of ranks per data-parallel rank
  bool recompute = false;
  std::int64_t micro_batch = kUneven;
  std::vector<std::string> recompute_modules{};
  /// Whether the layout can have this number of ranks.
  [[nodiscard]] bool fits(int ranks) const { return ranks % inner == 0 && (plugin != "data_parallel" || ranks == 1); }
};
void PrintTo(const TaskLayout& layout, std::ostream* out);

/// Trains in the layout on the ranks of this program: the losses and weights must be the expected ones. Evaluations
/// with other batch sizes must give the same. Collective.
void expect_same_on_sentences(const TaskLayout& layout, const MakeModel& make_model, const nn::Policy& policy,
                              const std::string& task, const TrainedOnSentences& expected,
                              std::shared_ptr<data::Dataset> data = nullptr);

}  // namespace trireme::tests
