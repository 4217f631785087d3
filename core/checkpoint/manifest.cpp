#include "core/checkpoint/manifest.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/safetensors_file.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string hex(std::uint32_t crc) { return fmt::format("{:08x}", crc); }

json range_json(const shard::Range& range) { return {range.begin, range.end}; }

json slice_json(const StoredSlice& slice) {
  const auto& placement = slice.placement;
  json out{{"file", slice.file}};
  if (!placement.ranges.empty()) {
    out["dim"] = placement.dim;
    for (const auto& range : placement.ranges) out["ranges"].push_back(range_json(range));
  }
  if (placement.flat) out["flat"] = range_json(*placement.flat);
  return out;
}

json tensor_json(const ShardedTensor& tensor) {
  json out{{"shape", tensor.shape}, {"dtype", safetensors_name(tensor.dtype)}, {"slices", json::array()}};
  if (tensor.stored_transposed) out["stored_transposed"] = true;
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
      const auto crc = entry.at("crc32").get<std::string>();
      if (crc.size() != 8 || crc.find_first_not_of("0123456789abcdef") != crc.npos)
        throw problem("\"{}\" has the CRC-32 \"{}\", which is not eight hexadecimal digits", name, crc);
      const auto bytes = integer(entry.at("bytes"), "a number of bytes");
      if (bytes < 0) throw problem("\"{}\" has {} bytes", name, bytes);
      out.files[name] = {static_cast<std::uint64_t>(bytes), static_cast<std::uint32_t>(std::stoul(crc, nullptr, 16))};
    }
    if (out.format == 1) return out;
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

  /// The library would convert any number, also one that the type cannot hold.
  std::int64_t integer(const json& from, const char* what) const {
    const bool fits =
        from.is_number_unsigned() ? from.get<std::uint64_t>() <= std::uint64_t{INT64_MAX} : from.is_number_integer();
    if (!fits)
      throw problem("not a manifest: {} is {}", what,
                    from.is_number() ? "not an integer below 2^63" : fmt::format("a JSON {}", from.type_name()));
    return from.get<std::int64_t>();
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
    ShardedTensor out{read_shape(from.at("shape")), *dtype, from.value("stored_transposed", false), {}};
    if (out.stored_transposed && out.shape.size() != 2)
      throw problem("tensor \"{}\" is stored transposed, but has {} dims", name, out.shape.size());
    elements(out.shape, name);
    for (const auto& slice : from.at("slices")) out.slices.push_back(read_slice(manifest, out, name, slice));
    return out;
  }

  StoredSlice read_slice(const Manifest& manifest, const ShardedTensor& tensor, const std::string& name,
                         const json& from) const {
    StoredSlice out{from.at("file"), shard::Placement::whole(name, tensor.shape)};
    if (!manifest.files.contains(out.file))
      throw problem("tensor \"{}\" is in \"{}\", which is not among the files", name, out.file);
    auto& placement = out.placement;
    if (from.contains("ranges")) {
      placement.dim = integer(from.at("dim"), "a slice's dim");
      if (placement.dim < 0 || placement.dim >= static_cast<std::int64_t>(tensor.shape.size()))
        throw problem("tensor \"{}\" has no dim {}", name, placement.dim);
      std::int64_t sum = 0;
      for (const auto& range : from.at("ranges")) {
        placement.ranges.push_back(read_range(range, tensor.shape[static_cast<std::size_t>(placement.dim)], name));
        if (__builtin_add_overflow(sum, placement.ranges.back().size(), &sum))
          throw problem("tensor \"{}\" has impossible ranges", name);
      }
      if (placement.ranges.empty()) throw problem("tensor \"{}\" has a slice without ranges", name);
    }
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
  for (const auto& [file, digest] : manifest.files)
    out["files"][file] = {{"bytes", digest.bytes}, {"crc32", hex(digest.crc32)}};
  for (const auto& [group, tensors] : manifest.tensors) {
    auto& entries = out["tensors"][group] = json::object();
    for (const auto& [name, tensor] : tensors) entries[name] = tensor_json(tensor);
  }
  return json_text(out, 1) + "\n";
}

static Manifest parse(const std::string& text, const std::string& path) {
  try {
    const auto content = json::parse(text);
    return Reader(path, content).read();
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: not a manifest: {}", path, json_problem(error)));
  }
}

Manifest read_part(const std::string& text) { return parse(text, "a rank's part of the manifest"); }

Manifest read_manifest(const std::string& folder) {
  const auto path = (fs::path(folder) / kManifest).string();
  auto manifest = parse(read_file(path), path);
  check_complete(manifest, path);
  return manifest;
}

void add_part(Manifest& manifest, const Manifest& part) {
  manifest.files.insert(part.files.begin(), part.files.end());
  for (const auto& [group, tensors] : part.tensors) {
    auto& into = manifest.tensors[group];
    for (const auto& [name, tensor] : tensors) {
      auto& whole = into.insert({name, {tensor.shape, tensor.dtype, tensor.stored_transposed, {}}}).first->second;
      TRIREME_CHECK(whole.shape == tensor.shape && whole.dtype == tensor.dtype &&
                        whole.stored_transposed == tensor.stored_transposed,
                    "two ranks have different tensors \"{}\"", name);
      whole.slices.insert(whole.slices.end(), tensor.slices.begin(), tensor.slices.end());
    }
  }
}

/// A reader reserves memory for a tensor before it opens the files.
static void check_room(const Manifest& manifest, const std::string& path) {
  std::map<std::string, std::uint64_t> needed;
  for (const auto& [group, tensors] : manifest.tensors)
    for (const auto& [name, tensor] : tensors)
      for (const auto& slice : tensor.slices) {
        auto& bytes = needed[slice.file];
        const auto more = static_cast<std::uint64_t>(slice.placement.local_numel()) * c10::elementSize(tensor.dtype);
        if (__builtin_add_overflow(bytes, more, &bytes) || bytes > manifest.files.at(slice.file).bytes)
          throw CheckpointError(
              fmt::format("{}: the slices in \"{}\" need more than its {} bytes; one is of the tensor \"{}\"", path,
                          slice.file, manifest.files.at(slice.file).bytes, name));
      }
}

void check_complete(const Manifest& manifest, const std::string& path) {
  check_room(manifest, path);
  for (const auto& [group, tensors] : manifest.tensors)
    for (const auto& [name, tensor] : tensors) {
      const auto full = shard::Placement::whole(name, tensor.shape).full_numel();
      std::int64_t held = 0;
      for (const auto& slice : tensor.slices)
        if (__builtin_add_overflow(held, slice.placement.local_numel(), &held)) held = -1;
      if (held != full)
        throw CheckpointError(fmt::format("{}: tensor \"{}\" of the {} has {} elements, but its slices {}", path, name,
                                          group, full, held));
    }
}

std::string file_problem(const std::string& path, const FileDigest& listed, Verify how) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}, but the manifest lists it", path, error.message());
  if (size != listed.bytes)
    return fmt::format("{} {}: {} bytes, but the manifest says {}", path,
                       size < listed.bytes ? "is truncated" : "has grown", size, listed.bytes);
  if (how == Verify::sizes) return "";
  const auto sum = digest_file(path).crc32;
  if (sum == listed.crc32) return "";
  return fmt::format("{} is damaged: CRC-32 {}, but the manifest says {}", path, hex(sum), hex(listed.crc32));
}

void verify_files(const std::string& folder, const Manifest& manifest, Verify how) {
  for (const auto& [name, digest] : manifest.files)
    if (const auto problem = file_problem((fs::path(folder) / name).string(), digest, how); !problem.empty())
      throw CheckpointError(problem);
}

}  // namespace trireme::checkpoint
