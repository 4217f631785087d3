#include "datasets/text/token_cache.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/comm/host_share.h"
#include "datasets/index_cache.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;
using Make = std::function<std::string(TokenWriter&)>;

/// `reliable`: set to false if a later change may keep the same stamp.
std::string stamp_text(const std::string& path, bool* reliable = nullptr) {
  const auto stamp = file_stamp(path);
  if (!stamp) return "missing";
  if (reliable != nullptr && !stamp->reliable) *reliable = false;
  return fmt::format("{} {}", stamp->bytes, stamp->modified_ns);
}

/// What the tokens are made from, as it is now.
struct SourceStamp {
  std::string text;
  bool reliable = true;
};
SourceStamp stamp_sources(const TokenRecipe& recipe) {
  SourceStamp stamp;
  Packer all;
  all.add(recipe.settings);
  for (const auto& path : recipe.sources) {
    all.add(fs::absolute(path).lexically_normal().string());
    all.add(stamp_text(path, &stamp.reliable));
  }
  stamp.text = std::move(all.bytes);
  return stamp;
}

std::string token_cache_name(const TokenRecipe& recipe) {
  auto key = random::hash(recipe.settings);
  for (const auto& path : recipe.sources)
    key = random::mix(key, random::hash(fs::absolute(path).lexically_normal().string()));
  return fmt::format("tokens-{:016x}", key);
}

std::string stamp_of_files(const std::string& prefix) {
  return stamp_text(prefix + ".idx") + "; " + stamp_text(prefix + ".bin");
}

/// The tokens in the cache, if they were made from the sources as they are now and nobody has changed them since.
std::optional<CachedTokens> read_cached_tokens(const std::string& name, const SourceStamp& sources) {
  const auto stored = sources.reliable ? read_index(name) : std::nullopt;
  if (!stored) return std::nullopt;
  const auto prefix = (index_folder() / name).string();
  try {
    Unpacker in(*stored);
    if (in.text() != sources.text || in.text() != stamp_of_files(prefix)) return std::nullopt;
    auto extra = in.text();
    return CachedTokens{TokenFile::open(prefix), std::move(extra), TokenOrigin::cached};
  } catch (const Error&) {
    return std::nullopt;  // the cache of another version, or damaged
  }
}

CachedTokens make_in_memory(const TokenRecipe& recipe, const Make& make) {
  TokenWriter writer("", recipe.vocabulary);
  auto extra = make(writer);
  return {writer.finish(recipe.sources.front()), std::move(extra), TokenOrigin::made_in_memory};
}

/// Makes the tokens and stores them, unless another host with the same folder has done so meanwhile: its ranks have
/// mapped those files already. @throws CheckpointError when the folder cannot be written
CachedTokens make_and_store(const TokenRecipe& recipe, const SourceStamp& sources, const std::string& name,
                            const Make& make) {
  const auto prefix = (index_folder() / name).string();
  make_folder(index_folder().string());
  TokenWriter writer(prefix, recipe.vocabulary);
  auto extra = make(writer);
  if (auto cached = read_cached_tokens(name, sources)) return *std::move(cached);
  CachedTokens made{writer.finish(recipe.sources.front()), std::move(extra), TokenOrigin::made};
  Packer stored;
  stored.add(sources.reliable ? sources.text : "");
  stored.add(stamp_of_files(prefix));
  stored.add(made.extra);
  write_index(name, stored.bytes);
  return made;
}

CachedTokens read_or_make(const TokenRecipe& recipe, const Make& make, const Log& log) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (const auto& path : recipe.sources)
    if (const auto size = fs::file_size(path, error); !error) bytes += size;
  if (static_cast<std::int64_t>(bytes) < recipe.least_bytes) return make_in_memory(recipe, make);
  const auto name = token_cache_name(recipe);
  const auto sources = stamp_sources(recipe);  // before they are read: a later change gives them another one
  if (auto cached = read_cached_tokens(name, sources)) return *std::move(cached);
  log.note("data: {} of text in {} are tokenised", text::bytes(static_cast<double>(bytes)), recipe.sources.front());
  std::string problem = "there is none";
  if (!index_folder().empty()) try {
      return make_and_store(recipe, sources, name, make);
    } catch (const CheckpointError& failure) {
      problem = failure.what();
    }
  log.note(
      "data: the tokens of {} are in memory, and each run makes them again: the user's cache folder cannot be "
      "written ({})",
      recipe.sources.front(), problem);
  return make_in_memory(recipe, make);
}

/// For the other ranks of a host: where the tokens are, or the tokens themselves.
std::string serialize_tokens(const CachedTokens& tokens) {
  Packer out;
  const bool in_memory = tokens.origin == TokenOrigin::made_in_memory;
  out.add(tokens.tokens->name());
  out.add(in_memory ? 1 : 0);
  if (in_memory) out.add(tokens.tokens->index_bytes());
  if (in_memory) out.add(tokens.tokens->id_bytes());
  out.add(tokens.extra);
  return std::move(out.bytes);
}

CachedTokens parse_tokens(std::string_view bytes) {
  Unpacker in(bytes);
  CachedTokens out;
  const auto name = in.text();
  if (in.number() == 0) {
    out.tokens = TokenFile::open(name);
  } else {
    auto index = in.text();
    out.tokens = TokenFile::in_memory(std::move(index), in.text(), name);
  }
  out.extra = in.text();
  return out;
}

}  // namespace

CachedTokens open_token_cache(const TokenRecipe& recipe, const Make& make, const data::OpenContext& context) {
  CachedTokens own;
  const auto shared = comm::share_on_host(context.launch, token_cache_name(recipe), [&] {
    own = read_or_make(recipe, make, context.log);
    return context.launch.local_size > 1 ? serialize_tokens(own) : std::string();
  });
  return own.tokens ? std::move(own) : parse_tokens(shared);
}

}  // namespace trireme::datasets
