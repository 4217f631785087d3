// The token cache: texts are tokenised once, by one rank of each host, into a file that all ranks map (token_file.h)
// and that later runs use again. It is in the folder of index_cache.h, with a stamp that states what it was made from.
//
// A cache is used if its sources have the sizes and modification times of the stamp, if everything else that the ids
// depend on is the same, and if its own files are as they were written; else it is made again. Nothing depends on it:
// where the folder cannot be written, and for small sources, the tokens are in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/data/datasets.h"
#include "datasets/text/token_file.h"

namespace trireme::datasets {

/// What tokens are made of.
struct TokenRecipe {
  std::vector<std::string> sources;  ///< files
  std::string settings;              ///< everything else that the result depends on
  std::int64_t vocabulary = 0;
  /// Smaller sources are tokenised in each run, which takes a moment, and leave nothing in the cache.
  std::int64_t least_bytes = std::int64_t{1} << 20;
};

enum class TokenOrigin { made_in_memory, made, cached, received };
struct CachedTokens {
  std::shared_ptr<const TokenFile> tokens;
  std::string extra;  ///< what `make` returned
  TokenOrigin origin = TokenOrigin::received;
};

/// `make` writes the tokens and returns what is kept beside them. It is called on one rank of the host at most, and
/// once more if the cache turns out not to be writable. @throws what `make` throws
CachedTokens open_token_cache(const TokenRecipe& recipe, const std::function<std::string(TokenWriter&)>& make,
                              const data::OpenContext& context);

}  // namespace trireme::datasets
