#include "core/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/safetensors_file.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

json digest_json(const FileDigest& digest) {
  json out{{"bytes", digest.bytes}, {"crc32", hex(digest.crc32)}};
  if (digest.sums.empty()) return out;
  std::string sums;
  for (const auto sum : digest.sums) sums += hex(sum);
  out["blocks"] = {{"bytes", digest.block_bytes}, {"sums", std::move(sums)}};
  return out;
}

json range_json(const shard::Range& range) { return {range.begin, range.end}; }

json cut_json(const shard::Cut& cut) {
  json out{{"dim", cut.dim}, {"ranges", json::array()}};
  for (const auto& range : cut.ranges) out["ranges"].push_back(range_json(range));
  return out;
}

json slice_json(const StoredSlice& slice) {
  const auto& placement = slice.placement;
  json out{{"file", slice.file}};
  if (placement.cuts.size() == 1) out.update(cut_json(placement.cuts.front()));
  if (placement.cuts.size() > 1)
    for (const auto& cut : placement.cuts) out["cuts"].push_back(cut_json(cut));
  if (placement.flat) out["flat"] = range_json(*placement.flat);
  return out;
}

json tensor_json(const ShardedTensor& tensor) {
  json out{{"shape", tensor.shape}, {"dtype", safetensors_name(tensor.dtype)}, {"slices", json::array()}};
  if (tensor.stored_transposed) out["stored_transposed"] = true;
  if (!tensor.stored_unstacked.empty()) out["stored_unstacked"] = tensor.stored_unstacked;
  for (const auto& slice : tensor.slices) out["slices"].push_back(slice_json(slice));
  return out;
}

class Reader {
 public:
  Reader(const std::string& path, const json& from) : path_(path), from_(from) {}

  Manifest read() const {
    if (!from_.is_object()) throw problem("not a manifest: a JSON {} in place of an object", from_.type_name());
    const auto format = integer(from_.at("format"), "the format");
    if (format < 1 || format > kManifestFormat)
      throw problem("format {}, but this version reads formats 1 to {}; read it with the version that wrote it", format,
                    kManifestFormat);
    Manifest out{.format = static_cast<int>(format), .files = {}, .tensors = {}};
    for (const auto& [name, entry] : from_.at("files").items()) {
      if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos || name.find('\0') != name.npos)
        throw problem("\"{}\" is not the name of a file beside the manifest", name);
      out.files[name] = read_digest(name, entry);
    }
    if (out.format == 1) return out;
    read_hosts(out);
    for (const auto& [group, tensors] : from_.at("tensors").items()) {
      auto& read = out.tensors[group];  // also of a group without tensors, such as the state of plain SGD
      for (const auto& [name, tensor] : tensors.items()) read[name] = read_tensor(out, name, tensor);
    }
    return out;
  }

 private:
  template <class... Args>
  [[nodiscard]] CheckpointError problem(fmt::format_string<Args...> text, Args&&... args) const {
    return CheckpointError(fmt::format("{}: {}", path_, fmt::format(text, std::forward<Args>(args)...)));
  }

  std::int64_t integer(const json& from, const char* what) const {
    if (!is_int64(from))
      throw problem("not a manifest: {} is {}", what,
                    from.is_number() ? "not an integer below 2^63" : fmt::format("a JSON {}", from.type_name()));
    return from.get<std::int64_t>();
  }

  void read_hosts(Manifest& out) const {
    if (!from_.contains("hosts")) return;
    out.hosts = from_.at("hosts").get<std::vector<std::string>>();
    for (const auto& [name, entry] : from_.at("files").items()) {
      if (!entry.contains("host")) continue;
      const auto host = integer(entry.at("host"), "a host");
      if (host < 0 || host >= std::ssize(out.hosts))
        throw problem("\"{}\" is of host {}, but there are {}", name, host, out.hosts.size());
      out.host_of[name] = static_cast<int>(host);
    }
  }

  std::uint32_t read_sum(const std::string& digits, const std::string& name) const {
    if (digits.size() != 8 || digits.find_first_not_of("0123456789abcdef") != digits.npos)
      throw problem("\"{}\" has the CRC-32 \"{}\", which is not eight hexadecimal digits", name, digits);
    return static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16));
  }

  FileDigest read_digest(const std::string& name, const json& entry) const {
    const auto bytes = integer(entry.at("bytes"), "a number of bytes");
    if (bytes < 0) throw problem("\"{}\" has {} bytes", name, bytes);
    FileDigest out{static_cast<std::uint64_t>(bytes), read_sum(entry.at("crc32").get<std::string>(), name)};
    if (!entry.contains("blocks")) return out;
    const auto& blocks = entry.at("blocks");
    const auto block = integer(blocks.at("bytes"), "a number of bytes");
    const auto sums = blocks.at("sums").get<std::string>();
    if (block <= 0 || block > bytes || sums.empty() || sums.size() % 8 != 0 ||
        bytes / block + (bytes % block != 0 ? 1 : 0) != std::ssize(sums) / 8)
      throw problem("\"{}\" has {} bytes, which are not {} blocks of {}", name, bytes, sums.size() / 8, block);
    out.block_bytes = static_cast<std::uint64_t>(block);
    for (std::size_t at = 0; at < sums.size(); at += 8) out.sums.push_back(read_sum(sums.substr(at, 8), name));
    if (out.sums.back() != out.crc32)
      throw problem("\"{}\" has the CRC-32 {}, but its last block ends with {}", name, hex(out.crc32),
                    hex(out.sums.back()));
    return out;
  }

  std::vector<std::int64_t> read_shape(const json& from) const {
    if (!from.is_array()) throw problem("a shape is not a list");
    std::vector<std::int64_t> out;
    for (const auto& size : from) out.push_back(integer(size, "a dim of a shape"));
    return out;
  }

  /// The product, unless it or a factor is beyond what a file can hold.
  std::int64_t elements(const std::vector<std::int64_t>& shape, const std::string& name) const {
    std::int64_t count = 1;
    for (const auto size : shape)
      if (size < 0 || __builtin_mul_overflow(count, size, &count) || count > (std::int64_t{1} << 56))
        throw problem("tensor \"{}\" has an impossible shape", name);
    return count;
  }

  shard::Range read_range(const json& from, std::int64_t end, const std::string& name) const {
    const shard::Range range{integer(from.at(0), "a range's begin"), integer(from.at(1), "a range's end")};
    if (range.begin < 0 || range.begin > range.end || range.end > end)
      throw problem("tensor \"{}\": the range [{}, {}) is not within [0, {})", name, range.begin, range.end, end);
    return range;
  }

  ShardedTensor read_tensor(const Manifest& manifest, const std::string& name, const json& from) const {
    const auto dtype = safetensors_dtype(from.at("dtype").get<std::string>());
    if (!dtype) throw problem("tensor \"{}\" has an unknown dtype {}", name, json_text(from.at("dtype")));
    ShardedTensor out{read_shape(from.at("shape")),
                      *dtype,
                      from.value("stored_transposed", false),
                      from.value("stored_unstacked", ""),
                      {}};
    if (out.stored_transposed && out.shape.size() != 2)
      throw problem("tensor \"{}\" is stored transposed, but has {} dims", name, out.shape.size());
    const auto count = elements(out.shape, name);
    const auto& pattern = out.stored_unstacked;
    if (!pattern.empty() && (out.stored_transposed || out.shape.size() < 2 || count == 0 ||
                             out.shape[0] > shard::kMostParts || std::count(pattern.begin(), pattern.end(), '*') != 1))
      throw problem("tensor \"{}\" cannot be stored as parts named \"{}\"", name, pattern);
    for (const auto& slice : from.at("slices")) out.slices.push_back(read_slice(manifest, out, name, slice));
    return out;
  }

  void read_cut(const json& from, shard::Placement& into) const {
    const auto dim = integer(from.at("dim"), "a slice's dim");
    if (dim < 0 || dim >= std::ssize(into.shape)) throw problem("tensor \"{}\" has no dim {}", into.name, dim);
    if (into.cut_along(dim) != nullptr)
      throw problem("tensor \"{}\" has a slice with two cuts of dim {}", into.name, dim);
    std::int64_t sum = 0;
    std::vector<shard::Range> ranges;
    for (const auto& range : from.at("ranges")) {
      ranges.push_back(read_range(range, into.shape[static_cast<std::size_t>(dim)], into.name));
      if (__builtin_add_overflow(sum, ranges.back().size(), &sum))
        throw problem("tensor \"{}\" has impossible ranges", into.name);
    }
    if (ranges.empty()) throw problem("tensor \"{}\" has a slice without ranges", into.name);
    into.cut(dim, std::move(ranges));
  }

  StoredSlice read_slice(const Manifest& manifest, const ShardedTensor& tensor, const std::string& name,
                         const json& from) const {
    StoredSlice out{from.at("file"), shard::Placement::whole(name, tensor.shape)};
    if (!manifest.files.contains(out.file))
      throw problem("tensor \"{}\" is in \"{}\", which is not among the files", name, out.file);
    auto& placement = out.placement;
    if (from.contains("ranges")) read_cut(from, placement);
    if (from.contains("cuts"))
      for (const auto& cut : from.at("cuts")) read_cut(cut, placement);
    const auto cut = elements(placement.cut_shape(), name);
    if (from.contains("flat")) placement.flat = read_range(from.at("flat"), cut, name);
    return out;
  }

  const std::string& path_;
  const json& from_;
};

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json out{{"format", manifest.format}, {"files", json::object()}, {"tensors", json::object()}};
  for (const auto& [file, digest] : manifest.files) out["files"][file] = digest_json(digest);
  if (!manifest.hosts.empty()) out["hosts"] = manifest.hosts;
  for (const auto& [file, host] : manifest.host_of) out["files"][file]["host"] = host;
  for (const auto& [group, tensors] : manifest.tensors) {
    auto& entries = out["tensors"][group] = json::object();
    for (const auto& [name, tensor] : tensors) entries[name] = tensor_json(tensor);
  }
  return json_text(out, 1) + "\n";
}

static Manifest parse(const std::string& text, const std::string& path) {
  try {
    const auto content = parse_json(text);
    return Reader(path, content).read();
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a manifest: {}", path, json_problem(error)));
  }
}

Manifest read_part(const std::string& text) { return parse(text, "a rank's part of the manifest"); }

Manifest read_manifest(const std::string& folder) {
  const auto path = path_in(folder, kManifest);
  auto manifest = parse(read_file(path), path);
  check_complete(manifest, path);
  return manifest;
}

void add_part(Manifest& manifest, const Manifest& part) {
  manifest.files.insert(part.files.begin(), part.files.end());
  manifest.host_of.insert(part.host_of.begin(), part.host_of.end());
  for (const auto& [group, tensors] : part.tensors) {
    auto& into = manifest.tensors[group];
    for (const auto& [name, tensor] : tensors) {
      auto& whole =
          into.insert({name, {tensor.shape, tensor.dtype, tensor.stored_transposed, tensor.stored_unstacked, {}}})
              .first->second;
      TRIREME_CHECK(whole.shape == tensor.shape && whole.dtype == tensor.dtype &&
                        whole.stored_transposed == tensor.stored_transposed &&
                        whole.stored_unstacked == tensor.stored_unstacked,
                    "two ranks have different tensors \"{}\"", name);
      whole.slices.insert(whole.slices.end(), tensor.slices.begin(), tensor.slices.end());
    }
  }
}

}  // namespace trireme::checkpoint
