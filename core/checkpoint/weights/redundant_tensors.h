// The tensors of a file of weights that the model does not use: whether they may be there. RedundantTensors are those
// that it does not need (nn::RedundantTensor): of a copy, such as a head's weight that the model ties to its embedding,
// the values must be those of the original. Others may show that the file is of another depth, or holds adapters.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/weights/stored_names.h"
#include "core/nn/naming.h"
#include "core/nn/parameters.h"

namespace trireme::checkpoint {

class RedundantTensors {
 public:
  /// All but `are_adapters` must outlive the object. `are_adapters`: the file holds adapters, not a model's weights.
  RedundantTensors(const WeightsSource& source, const StoredNames& names, const std::vector<nn::RedundantTensor>& rows,
                   bool are_adapters)
      : source_(source), names_(names), rows_(rows), are_adapters_(are_adapters) {}

  /// Whether the model needs no tensor of this name. @throws ConfigError for a copy that differs from its original
  bool covers(const std::string& name);
  /// PEFT's model keeps the base model's tensor where its file has only one of two that are tied.
  /// @throws ConfigError
  void check_adapters() const;
  /// Copies in a file of adapters are compared with the base model's originals, which are loaded.
  /// @throws ConfigError
  void check_copies(const std::vector<nn::Parameter>& parameters) const;

 private:
  /// A tensor of the file, of which no parameter of the model takes the values.
  struct Copy {
    const nn::RedundantTensor* row;
    StoredTensor stored;
  };
  [[noreturn]] static void refuse(const Copy& copy, const std::string& original, const std::string& where);

  const WeightsSource& source_;
  const StoredNames& names_;
  const std::vector<nn::RedundantTensor>& rows_;
  bool are_adapters_;
  std::vector<Copy> of_base_;
};

/// The name with a '*' for each of its parts that is a number: the same for all layers of one kind.
std::string without_numbers(const std::string& name);

/// @throws CheckpointError when the unused tensors have further layers: names like those of the model but with other
/// numbers. `kinds`: the model's names in the file, without_numbers(), but not those of its head, which may be another.
void check_depth(const std::vector<std::string>& unused, const std::set<std::string>& kinds, const std::string& path);

/// @throws CheckpointError when the unused tensors are adapters, or the file must not have unused ones
void check_adapters(const std::vector<std::string>& unused, const std::string& path, bool are_adapters);

}  // namespace trireme::checkpoint
