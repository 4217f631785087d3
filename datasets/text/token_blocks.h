// Tokens in blocks of one length, samples of a language model. An incomplete block at the end is left out.
//
// Causal: labels are the ids themselves, as in Hugging Face's models (the task compares each output with the next id).
// Masked (Devlin et al., "BERT", 2018): a share of the tokens that are not special ones is chosen; 80 % of them are
// replaced by the mask token, 10 % by a random one, 10 % stay; labels are the ids of the chosen tokens, else -100. The
// choice depends on (seed, epoch, sample) alone, and in an evaluation on (seed, sample).
//
// With document_mask, samples say which tokens are of one document (packing.h). The first token of a document has no
// label for a causal model then, because it follows nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "datasets/text/token_file.h"
#include "tokenizers/tokenizer.h"

namespace trireme::datasets {

struct Masking {
  double share = 0;  ///< of the tokens; 0: causal
  std::int64_t mask = 0;
  std::vector<std::int64_t> special{};  ///< tokens that are never chosen
};
/// @pre with share > 0 the tokenizer has a mask token
Masking masking_of(double share, const tokenizers::SpecialTokens& special);

/// A range of the ids of a file.
struct TokenRange {
  std::shared_ptr<const TokenFile> tokens;
  std::int64_t begin = 0, end = 0;
  std::string source{};     ///< what the user named, for errors
  bool is_cut_off = false;  ///< the validation split, cut off the training text
};

struct BlockOptions {
  std::int64_t block = 0;  ///< tokens of a sample
  std::int64_t vocabulary = 0;
  Masking masking{};
  std::uint64_t seed = 0;
  bool document_mask = false;
};
/// @throws DataError for fewer tokens than a block has
std::shared_ptr<data::Dataset> token_blocks(TokenRange range, BlockOptions options);

}  // namespace trireme::datasets
