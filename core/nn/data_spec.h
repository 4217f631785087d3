// DataSpec: what a data set offers, before a model exists. A model kind checks it and sizes itself by it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::nn {

inline constexpr const char* kLabels = "labels";  ///< the name of the target that built-in tasks read
/// Targets of a training sample that is mixed from two (mixup): the other sample's label, and the share of the own one.
inline constexpr const char* kMixedLabels = "mixed_labels";
inline constexpr const char* kLabelShares = "label_shares";

/// One tensor of a sample.
struct SampleTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape{};  ///< without the batch dimension; -1: varies from sample to sample
  [[nodiscard]] bool varies() const;
  /// "pixel_values float32 [3, 224, 224]"
  [[nodiscard]] std::string text() const;
  friend bool operator==(const SampleTensor&, const SampleTensor&) = default;
};

/// The ids of a tokenizer's tokens that begin and end a text and that pad a batch; unset: it has none.
struct TokenIds {
  std::optional<std::int64_t> begin{}, end{}, padding{};
};

struct DataSpec {
  std::vector<SampleTensor> inputs{}, targets{};
  std::int64_t classes = 0;        ///< labels are 0 to classes - 1; 0: there are no such labels
  std::int64_t vocabulary = 0;     ///< token ids are 0 to vocabulary - 1; 0: unknown
  bool ignored_labels = true;      ///< some labels may be -100, which do not count; false: none is
  bool labels_are_inputs = false;  ///< each label is the id of its own token, to be predicted from those before it
  std::vector<std::string> class_names{};  ///< empty, or one per class
  std::optional<TokenIds> tokens{};        ///< of the tokenizer that reads the data; unset: none does
  std::int64_t longest = 0;                ///< tokens of the longest sample, as it is padded; 0: unknown
  std::string longest_key{};               ///< "data.max_tokens": the key that makes samples shorter
  /// Reads the class of each training sample, -100 where it does not count; empty where samples have no class. Unset:
  /// there is no training split, or epochs are drawn from it (data/mixture.h).
  std::function<std::vector<std::int64_t>()> classes_of_training{};

  /// Null when there is no such tensor.
  [[nodiscard]] const SampleTensor* input(std::string_view name) const;
  [[nodiscard]] const SampleTensor* target(std::string_view name) const;
  /// An input that `reader` ("model \"vit\"") must have. @throws ConfigError that lists the inputs
  [[nodiscard]] const SampleTensor& required_input(std::string_view name, std::string_view reader) const;
};

}  // namespace trireme::nn
