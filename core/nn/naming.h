// Naming: the names that another library gives to a model's tensors, such as timm's for a Vision Transformer. Files
// with these names can then be loaded. A stored tensor may hold several parameters, one after the other along dim 0, as
// a fused query, key and value does.
//
// In a pattern, each '*' stands for one part of a name, which has no dots, and one '**' for one part or more; the n-th
// star of both names is the same part.
//
// Conversion: how a stored tensor becomes a parameter of another shape, or of another meaning of the same shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::nn {

/// A parameter, or those that match a pattern, in a file.
struct StoredName {
  std::string parameter, stored;
  std::int64_t part = 0, parts = 1;  ///< the parameter is this one of `parts` equal parts of the stored tensor
};

/// A stored tensor that a model does not need: a buffer of earlier versions of a library, or a copy of another tensor.
struct RedundantTensor {
  std::string stored;     ///< a pattern for the last parts of its name
  std::string copy_of{};  ///< the parameter of which it is a copy, and `stored` then a name; "": values do not matter
  std::string remedy{};   ///< what to do where a file's copy differs; "": such a file does not fit
  [[nodiscard]] bool matches(const std::string& name) const;
};

struct Naming {
  std::string library;  ///< "timm"
  std::vector<StoredName> names;
  /// Whether these are the names of transformers' modules, by which PEFT names adapters, where those in transformers'
  /// files differ: the patterns are modules', and what is in no such module has the same name in both.
  bool of_modules = false;
  /// Stored tensors whose values the model cannot use, so that its results with the others would be wrong.
  struct Unsupported {
    std::string stored;  ///< a name or a pattern
    std::string reason;  ///< follows the file and the tensor in an error: "is of a distilled DeiT, ..."
  };
  std::vector<Unsupported> unsupported{};

  /// Where the file has this parameter, without patterns; nullopt: it has no such name.
  [[nodiscard]] std::optional<StoredName> find(const std::string& parameter) const;
  /// The row of `unsupported` for this stored tensor, or null.
  [[nodiscard]] const Unsupported* refused(const std::string& stored) const;
};

struct Conversion {
  std::string done{};  ///< what is done to the tensor, for a log: "interpolated"
  std::function<at::Tensor(const at::Tensor& stored)> apply{};
  /// Whether there is one.
  explicit operator bool() const { return apply != nullptr; }
};

}  // namespace trireme::nn
