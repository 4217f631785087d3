#include "datasets/tar_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "datasets/folder_entries.h"
#include "datasets/index_cache.h"
#include "datasets/parallel.h"
#include "datasets/shard_pattern.h"
#include "datasets/tar_archive.h"

namespace trireme::datasets {
namespace {

constexpr std::size_t kIndexThreads = 8;  // reading headers waits for the file system, not for the processor

/// A member's name as WebDataset splits it: "a/b.seg.PNG" has the key "a/b" and the extension "seg.png".
struct MemberName {
  std::string key, extension;
};

/// nullopt: the member belongs to no sample.
std::optional<MemberName> split_name(const std::string& name) {
  const auto slash = name.rfind('/');
  const auto base = slash == name.npos ? 0 : slash + 1;
  const auto dot = name.find('.', base);
  if (dot == name.npos || is_hidden(name) || name.compare(base, 2, "__") == 0) return std::nullopt;
  MemberName out{name.substr(0, dot), name.substr(dot + 1)};
  for (auto& c : out.extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// The members of one key.
struct TarSample {
  std::string key;
  std::optional<TarMember> image, cls, json;
};

/// Puts the samples of one archive together.
class ShardBuilder {
 public:
  explicit ShardBuilder(const TarFile& file) : reader_(file) { shard_.path = file.name(); }

  TarShard build() {
    while (const auto member = reader_.next())
      if (const auto name = split_name(member->name)) add(*member, *name);
    finish();
    if (shard_.images.empty())
      throw DataError(
          fmt::format("{}: no sample in this shard: it needs members KEY.jpg (or another image) and KEY.cls (or "
                      "KEY.json); remove it if it is empty",
                      shard_.path));
    return std::move(shard_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: key \"{}\": {}", shard_.path, text::printable(sample_.key), what));
  }

  void add(const TarMember& member, const MemberName& name) {
    if (name.key != sample_.key) {
      finish();
      sample_ = {name.key, {}, {}, {}};
    }
    const auto& extension = name.extension;
    if (extension.find('.') == extension.npos && has_image_ending("x." + extension)) {
      if (sample_.image)
        refuse(fmt::format("has two images, {} and {}; keep one", text::printable(sample_.image->name),
                           text::printable(member.name)));
      if (member.size > std::numeric_limits<std::uint32_t>::max())
        refuse(fmt::format("its image has {} bytes, too many", member.size));
      sample_.image = member;
    } else if (extension == "cls" || extension == "json") {
      (extension == "cls" ? sample_.cls : sample_.json) = member;
    }
  }

  /// Ends the sample of the current key.
  void finish() {
    if (!sample_.image) {
      shard_.without_image += !sample_.key.empty();
      return;
    }
    const auto label = label_of_sample();
    if (label < 0 || label >= kMostClasses) refuse(fmt::format("the label {} is not 0 to {}", label, kMostClasses - 1));
    shard_.images.push_back(
        {sample_.image->offset, static_cast<std::uint32_t>(sample_.image->size), static_cast<std::int32_t>(label)});
    shard_.digest = random::mix(shard_.digest + static_cast<std::uint64_t>(label), random::hash(sample_.key));
  }

  nlohmann::json json_of_sample() {
    try {
      return parse_json(reader_.text(*sample_.json));
    } catch (const nlohmann::json::exception& error) {
      refuse(fmt::format("its .json, {}", json_problem(error)));
    }
  }

  std::int64_t label_of_sample() {
    if (sample_.cls) {
      const auto content = reader_.text(*sample_.cls);
      auto digits = std::string_view(content);
      const auto last = digits.find_last_not_of(" \t\r\n");
      digits = digits.substr(0, last == digits.npos ? 0 : last + 1);
      digits.remove_prefix(std::min(digits.find_first_not_of(" \t\r\n"), digits.size()));
      const auto label = text::integer(digits);
      if (!label)
        refuse(fmt::format("its .cls is \"{}\" instead of the number of a class",
                           text::printable(std::string(digits.substr(0, 40)))));
      return *label;
    }
    if (sample_.json) {
      const auto content = json_of_sample();
      for (const auto* name : {"label", "cls"})
        if (content.is_object() && content.contains(name) && content[name].is_number_integer())
          return content[name].get<std::int64_t>();
      refuse(R"(its .json has no integer "label" or "cls")");
    }
    refuse(
        "has an image but no label; write KEY.cls or KEY.json beside the image (the members of one key must be "
        "adjacent)");
  }

  TarReader reader_;
  TarShard shard_;
  TarSample sample_;
};

/// Notes the file's size and time of the last change. A file that was changed just now gets no time, so that its index
/// is not used again.
void stamp_shard(TarShard& shard) {
  if (is_command(shard.path)) return;
  const auto stamp = file_stamp(shard.path);
  if (!stamp) return;  // reading the file says why
  shard.file_bytes = stamp->bytes;
  if (stamp->reliable) shard.version = stamp->modified_ns;
}

std::string index_name(const std::vector<std::string>& paths) {
  std::uint64_t key = 0;
  for (const auto& path : paths)
    key = random::mix(key, random::hash(is_command(path) ? path : std::filesystem::absolute(path).string()));
  return fmt::format("tar-{:016x}", key);
}

std::uint32_t crc32_of(const TarFile& file) {
  std::vector<char> part(std::size_t{1} << 20);
  std::uint32_t sum = 0;
  for (std::int64_t at = 0; at < file.size(); at += static_cast<std::int64_t>(part.size())) {
    part.resize(std::min(part.size(), static_cast<std::size_t>(file.size() - at)));
    file.read(at, part);
    sum = crc32(sum, part.data(), part.size());
  }
  return sum;
}

/// Indexes what a command has written.
TarShard index_fetched(const std::string& command, ShardCache& cache) {
  const auto file = cache.open(command, TarFile::Access::files);
  try {
    auto shard = index_shard(*file);
    shard.file_bytes = file->size();
    shard.version = crc32_of(*file);
    return shard;
  } catch (const DataError&) {
    ShardCache::forget(command);  // the next run asks the command again
    throw;
  }
}

/// Reads the shards that have no images yet.
void read_shards(std::vector<TarShard>& shards, ShardCache& cache) {
  std::vector<TarShard*> open;
  for (auto& shard : shards)
    if (shard.images.empty()) open.push_back(&shard);
  auto read = make_all(open.size(), kIndexThreads, [&](std::size_t i) {
    if (is_command(open[i]->path)) return index_fetched(open[i]->path, cache);
    auto shard = index_shard({open[i]->path, TarFile::Access::headers});
    shard.file_bytes = open[i]->file_bytes;
    shard.version = open[i]->version;
    return shard;
  });
  for (std::size_t i = 0; i < open.size(); ++i) *open[i] = std::move(read[i]);
}

}  // namespace

ShardContent content_of(const TarShard& shard) { return {shard.file_bytes, static_cast<std::uint32_t>(shard.version)}; }

TarShard index_shard(const TarFile& file) { return ShardBuilder(file).build(); }

std::vector<TarShard> index_shards(const std::vector<std::string>& paths, ShardCache& cache, const Log& log) {
  const auto name = index_name(paths);
  std::map<std::string, TarShard> stored;
  if (const auto cached = read_index(name))
    if (auto shards = parse_shards(*cached))
      for (auto& shard : *shards) stored[shard.path] = std::move(shard);
  std::vector<TarShard> out(paths.size());
  bool complete = true;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    out[i].path = paths[i];
    stamp_shard(out[i]);
    const auto found = stored.find(paths[i]);
    if (found != stored.end() &&
        (is_command(paths[i]) || (out[i].version != 0 && found->second.version == out[i].version &&
                                  found->second.file_bytes == out[i].file_bytes)))
      out[i] = std::move(found->second);
    complete = complete && !out[i].images.empty();
  }
  if (complete) return out;
  const auto commands = std::count_if(out.begin(), out.end(),
                                      [](const auto& shard) { return shard.images.empty() && is_command(shard.path); });
  if (commands > 0)
    log.note("data: {} {} fetched for the index, which later runs have", text::quantity(commands, "shard"),
             commands == 1 ? "is" : "are");
  read_shards(out, cache);
  write_index(name, serialize_shards(out));
  return out;
}

std::string serialize_shards(const std::vector<TarShard>& shards) {
  static_assert(std::is_trivially_copyable_v<TarImage> && sizeof(TarImage) == 16);
  Packer out;
  for (const auto& shard : shards) {
    out.add(shard.path);
    for (const auto number :
         {shard.file_bytes, shard.version, shard.without_image, static_cast<std::int64_t>(shard.digest)})
      out.add(number);
    out.add({reinterpret_cast<const char*>(shard.images.data()), shard.images.size() * sizeof(TarImage)});
  }
  return std::move(out.bytes);
}

std::optional<std::vector<TarShard>> parse_shards(const std::string& bytes) try {
  std::vector<TarShard> out;
  for (Unpacker in(bytes); !in.at_end();) {
    auto& shard = out.emplace_back();
    shard.path = in.text();
    for (auto* number : {&shard.file_bytes, &shard.version, &shard.without_image}) *number = in.number();
    shard.digest = static_cast<std::uint64_t>(in.number());
    const auto images = in.text();
    if (images.empty() || images.size() % sizeof(TarImage) != 0) return std::nullopt;
    shard.images.resize(images.size() / sizeof(TarImage));
    std::memcpy(shard.images.data(), images.data(), images.size());
  }
  return out;
} catch (const LogicError&) {
  return std::nullopt;
}

}  // namespace trireme::datasets
