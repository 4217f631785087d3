#include "core/base/safetensors_file.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/base/text.h"

namespace trireme {

static_assert(std::endian::native == std::endian::little, "safetensors holds little-endian numbers");

namespace {

constexpr std::size_t kPrefix = 8;                 // bytes of the header's length field
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format's reference library
constexpr std::size_t kMaxDims = 64;

const std::map<std::string, at::ScalarType>& dtypes() {
  static const std::map<std::string, at::ScalarType> known{
      {"F64", at::kDouble},         {"F32", at::kFloat},        {"F16", at::kHalf},
      {"BF16", at::kBFloat16},      {"I64", at::kLong},         {"I32", at::kInt},
      {"I16", at::kShort},          {"I8", at::kChar},          {"U8", at::kByte},
      {"BOOL", at::kBool},          {"U16", at::kUInt16},       {"U32", at::kUInt32},
      {"U64", at::kUInt64},         {"C64", at::kComplexFloat}, {"F8_E4M3", at::kFloat8_e4m3fn},
      {"F8_E5M2", at::kFloat8_e5m2}};
  return known;
}

/// What a file that is no safetensors file often is, by its first bytes; "" when they say nothing.
std::string what_it_is(std::string_view content) {
  if (content.starts_with("version https://git-lfs"))
    return ": it is a Git LFS pointer, which stands for the file; fetch it with `git lfs pull`";
  if (content.starts_with("<")) return ": it is a web page; download the file itself";
  if (content.starts_with("PK\x03\x04") || content.starts_with("\x80\x02"))
    return ": it is a PyTorch file; save the weights as safetensors first";
  return "";
}

}  // namespace

std::optional<at::ScalarType> safetensors_dtype(const std::string& name) {
  const auto found = dtypes().find(name);
  return found == dtypes().end() ? std::nullopt : std::optional(found->second);
}

std::string safetensors_name(at::ScalarType dtype) {
  for (const auto& [name, known] : dtypes())
    if (known == dtype) return name;
  return "";
}

std::int64_t SafeTensorsFile::TensorEntry::numel() const { return c10::multiply_integers(shape); }

void SafeTensorsFile::fail(const std::string& what) const { throw FormatError(fmt::format("{}: {}", path_, what)); }

SafeTensorsFile::SafeTensorsFile(const std::string& path) : path_(path), file_(map_file<FormatError>(path)) {
  parse_header();
  check_coverage();
}

void SafeTensorsFile::parse_header() {
  const auto content = file_.view;
  if (content.size() < kPrefix)
    fail(fmt::format("not a safetensors file: {} bytes are too few for a header", content.size()));
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), kPrefix);
  if (length > kMaxHeader) fail("not a safetensors file" + what_it_is(content));
  if (length > content.size() - kPrefix)
    fail(fmt::format("not a safetensors file, or truncated: its header should have {} bytes, and {} are there", length,
                     content.size() - kPrefix));
  data_begin_ = kPrefix + static_cast<std::size_t>(length);

  // The JSON library silently keeps the last of two equal keys; a duplicate tensor is an error here.
  std::set<std::string> seen;
  std::string twice;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1 && !seen.insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  nlohmann::json header;
  try {
    header = parse_json(content.substr(kPrefix, static_cast<std::size_t>(length)), watch);
  } catch (const nlohmann::json::exception& error) {
    fail(fmt::format("the header, {}", json_problem(error)));
  }
  if (!header.is_object()) fail("the header is JSON, but not an object");
  if (!twice.empty()) fail(fmt::format("the header holds \"{}\" twice", twice));
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      add_tensor(name, &value);
      continue;
    }
    if (!value.is_object()) fail("\"__metadata__\" is not an object");
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) fail(fmt::format("\"__metadata__\": the value of \"{}\" is not a string", key));
      metadata_[key] = text_value.get<std::string>();
    }
  }
}

void SafeTensorsFile::add_tensor(const std::string& name, const void* json_entry) {
  const auto& value = *static_cast<const nlohmann::json*>(json_entry);
  const auto bad = [&](const std::string& what) { fail(fmt::format("tensor \"{}\": {}", name, what)); };
  const auto is = [&](const char* key, nlohmann::json::value_t type) {
    return value.is_object() && value.contains(key) && value[key].type() == type;
  };
  if (!is("dtype", nlohmann::json::value_t::string)) bad("has no \"dtype\"");
  if (!is("shape", nlohmann::json::value_t::array)) bad("has no \"shape\"");
  if (!is("data_offsets", nlohmann::json::value_t::array) || value["data_offsets"].size() != 2)
    bad("has no \"data_offsets\" [begin, end]");
  const auto dtype = safetensors_dtype(value["dtype"].get<std::string>());
  if (!dtype) bad(fmt::format("unknown dtype \"{}\"", value["dtype"].get<std::string>()));

  TensorEntry entry{*dtype, {}, 0, 0};
  if (value["shape"].size() > kMaxDims) bad(fmt::format("has {} dimensions, which is too many", value["shape"].size()));
  // No dim and no product may exceed int64, in whatever order the dims come (a zero dim does not hide the others).
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / 16;
  std::uint64_t product = 1;
  bool empty = false;
  for (const auto& extent : value["shape"]) {
    if (!extent.is_number_unsigned()) bad("a dimension of its shape is not a non-negative integer");
    const auto n = extent.get<std::uint64_t>();
    if (n > kMost || (n > 0 && product > kMost / n)) bad("its shape has too many elements");
    if (n == 0) empty = true;
    if (n > 0) product *= n;
    entry.shape.push_back(static_cast<std::int64_t>(n));
  }
  for (const auto& offset : value["data_offsets"])
    if (!offset.is_number_unsigned()) bad("an offset is not a non-negative integer");
  entry.begin = value["data_offsets"][0].get<std::uint64_t>();
  entry.end = value["data_offsets"][1].get<std::uint64_t>();
  const std::uint64_t data_size = file_.view.size() - data_begin_;
  if (entry.begin > entry.end || entry.end > data_size)
    bad(fmt::format("its bytes {}..{} lie outside the {} bytes of data (is the file truncated?)", entry.begin,
                    entry.end, data_size));
  const auto needed = empty ? 0 : product * c10::elementSize(entry.dtype);
  if (entry.end - entry.begin != needed)
    bad(fmt::format("its shape needs {} bytes, but its offsets span {}", needed, entry.end - entry.begin));
  tensors_.emplace(name, std::move(entry));
}

void SafeTensorsFile::check_coverage() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const auto& [name, entry] : tensors_) spans.emplace_back(entry.begin, entry.end);
  std::sort(spans.begin(), spans.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : spans) {
    if (begin < at) fail(fmt::format("two tensors overlap at byte {} of the data", begin));
    if (begin > at) fail(fmt::format("bytes {}..{} of the data belong to no tensor", at, begin));
    at = end;
  }
  if (const auto end = file_.view.size() - data_begin_; at != end)
    fail(fmt::format("bytes {}..{} of the data belong to no tensor", at, end));
}

const SafeTensorsFile::TensorEntry& SafeTensorsFile::entry(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  fail(fmt::format("holds no tensor \"{}\"{}", name, text::did_you_mean(name, text::keys_of(tensors_))));
}

std::span<const std::byte> SafeTensorsFile::bytes(const std::string& name) const {
  const auto& found = entry(name);
  return std::as_bytes(std::span(file_.view).subspan(data_begin_ + found.begin, found.end - found.begin));
}

at::Tensor SafeTensorsFile::read(const std::string& name) const {
  const auto& found = entry(name);
  auto out = at::empty(found.shape, found.dtype);
  const auto source = bytes(name);
  if (!source.empty()) std::memcpy(out.mutable_data_ptr(), source.data(), source.size());
  return out;
}

}  // namespace trireme
