// The trainings that the tests of contract C1 compare: their keys, data and models.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/nn/lora_options.h"
#include "core/nn/parameters.h"

namespace trireme::tests {

/// As Case::micro_batch: a rank that takes several samples of a full step has two or three microbatches of these, of
/// different sizes where it takes more than 2. A case that counts on more of them, or on empty ones at the end of an
/// epoch, says micro_batch = 1.
constexpr std::int64_t kUneven = 0;

/// One training to compare. All fields but `micro_batch` and `plugin` change the numbers, equally in every layout. By
/// default the second step is the last one, with the 3 samples that are left of the epoch.
struct Case {
  std::string name;
  std::int64_t samples = 11, global_batch = 8, micro_batch = 8, steps = 2;
  bool adamw = true;
  double dropout = 0, max_norm = 0, smoothing = 0;  ///< smoothing: of the labels
  bool recompute = false;
  std::int64_t hidden = 24, mlp = 0, layers = 2, heads = 3;  ///< mlp 0: twice the hidden size
  std::int64_t pixels = 12, patch = 4;                       ///< sides of an image and of a patch: 10 tokens
  std::int64_t width = 0;                                    ///< of an image; 0: as its height, `pixels`
  std::vector<std::string> freeze = {}, no_decay = {};
  std::string plugin = "";    ///< keys of the plugin's section
  bool unused_block = false;  ///< the model has parameters that the loss does not depend on
  bool rare = false;          ///< a block whose weights only sample 3 uses: most ranks have no gradient for them
  bool balance = false;       ///< a block of its own adds a term to the loss
  bool adapted = false;       ///< a user's own torch::nn::Sequential
  bool in_place = false;      ///< ... with a layer that changes its input
  bool twice = false;         ///< a block runs twice, and two blocks share a parameter
  bool everywhere = false;    ///< ... and that block between all others, so that every stage has the parameter
  /// A small language model instead of the ViT; its head is tied to the embedding or has its own weights.
  enum class Vocabulary { none, tied, untied } vocabulary = Vocabulary::none;
  std::string precision = "fp64";
  double initial_scale = 65536;  ///< of fp16's loss scale
  std::string plugin_name = "torch_ddp";
  std::int64_t tp = 1, pp = 1;   ///< ranks beside data parallelism that the plugin's keys ask for
  bool sequence = false;         ///< those keys ask for sequence parallelism
  bool reduce_each = false;      ///< by_pieces() reduces after each microbatch, without no_sync()
  std::string train = "";        ///< further keys of [train]
  bool fused_attention = false;  ///< they ask for a kernel that LibTorch has on GPUs in 16 bits alone
  std::optional<nn::LoraOptions> lora{};
};

/// Adapters on every linear layer but the ViT's head, which is trained in full.
nn::LoraOptions adapters();

/// What a failed test prints of its case.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
/// Names the tests of a suite after their cases.
inline const auto kCaseName = [](const auto& value) { return value.param.name; };

constexpr std::int64_t kClasses = 5;     ///< of the images
constexpr std::int64_t kVocabulary = 7;  ///< the vocabulary of the language model: uneven over 2 to 6 ranks

std::shared_ptr<data::Dataset> make_data(const Case& c);
std::shared_ptr<nn::Model> make_model(const Case& c);
/// The term of Case::balance in the last forward pass without an engine, which did not add it.
at::Tensor last_term(nn::Model& model);

}  // namespace trireme::tests
