// Text generation with a causal language model: token ids in, token ids out, of several texts at once. Each token is
// drawn from the model's scores of the token after a text's last one, and is then part of that text. Greedy, with a
// temperature (Ackley, Hinton and Sejnowski, "A learning algorithm for Boltzmann machines", 1985), and from the k most
// probable tokens (Fan, Lewis and Dauphin, "Hierarchical Neural Story Generation", 2018), or from the fewest that have
// a part of the probability together (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/setup/run_setup.h"
#include "core/train/next_token.h"

namespace trireme::train {

struct SamplingOptions {
  double temperature = 0;   ///< scores are divided by it; 0: the most probable token is taken
  std::int64_t top_k = 0;   ///< only the k most probable tokens are drawn; 0: all
  double top_p = 1;         ///< of these, only the fewest that have this part of their probability; 1: all
  std::uint64_t seed = 42;  ///< with the number of a draw, determines the token
};

/// Chooses a token by its scores: logits [V], of any floating-point dtype. `draw`: the number of this draw. Of tokens
/// with equal scores, the one with the smaller id comes first. @throws NonFiniteError when a score is not a number, or
/// none is finite
std::int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, std::int64_t draw);

/// A causal language model that is ready to run.
struct LanguageModel {
  /// The scores of the token that follows each text: [B, V].
  std::function<at::Tensor(const Texts& texts)> next_logits;
  std::int64_t vocabulary = 0;  ///< ids are 0 to vocabulary - 1; 0: unknown
  std::int64_t positions = 0;   ///< the number of ids of a text that next_logits() takes at most; 0: any
};
/// Loads the weights of prepare_generation() onto a device. @throws CheckpointError, NonFiniteError
LanguageModel open_language_model(const RunSetup& setup, c10::Device device);

struct GenerateOptions {
  std::int64_t tokens = 64;  ///< to generate, at most
  SamplingOptions sampling{};
  Texts ends{};  ///< tokens, or several together, after which nothing is generated
  /// The ids that may be generated are 0 to this - 1, for a tokenizer with fewer tokens than the model; 0: all.
  std::int64_t vocabulary = 0;
};
/// For a program that does not give generate() all prompts in one call. @throws DataError that names the first prompt
/// which is empty or has an id outside the vocabulary
void check_prompts(const LanguageModel& model, const Texts& prompts);
/// Returns the tokens that follow each prompt, without the end: those that would follow it alone. The model sees
/// the last tokens that it has positions for. @throws DataError when a prompt is empty or has an id outside the
/// vocabulary; as sample_token()
Texts generate(const LanguageModel& model, const Texts& prompts, const GenerateOptions& options);

}  // namespace trireme::train
