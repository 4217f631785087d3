#include "datasets/text/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/files/files.h"

namespace trireme::datasets {
namespace {

constexpr std::string_view kTokenMagic("MMIDIDX\0\0", 9);
constexpr std::int64_t kTokenFileVersion = 1;
constexpr std::size_t kTokenHeader = kTokenMagic.size() + sizeof kTokenFileVersion + 1 + 2 * sizeof(std::int64_t);
constexpr std::size_t kFlushBytes = std::size_t{4} << 20;
enum TokenType { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

/// A type of ids: the bytes of each, and a loop that reads some of them. No ATen: its copy_() would start threads in a
/// loader's worker.
struct StoredIds {
  std::int64_t bytes_each;
  void (*copy)(const char* from, std::span<std::int64_t> out);
};

template <class T>
StoredIds stored_as() {
  // Aligned: the ids begin with the file, which is mapped, or with a string.
  return {sizeof(T), [](const char* from, std::span<std::int64_t> out) {
            std::copy_n(reinterpret_cast<const T*>(from), out.size(), out.begin());
          }};
}

template <class T>
void put_numbers(std::string& out, const std::vector<T>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

std::shared_ptr<const TokenFile> TokenFile::open(const std::string& prefix) {
  return std::shared_ptr<const TokenFile>(
      new TokenFile(map_file<DataError>(prefix + ".idx"), map_file<DataError>(prefix + ".bin"), prefix));
}

std::shared_ptr<const TokenFile> TokenFile::in_memory(std::string index, std::string ids, const std::string& name) {
  const auto bytes = [](std::string content) {
    const auto owner = std::make_shared<const std::string>(std::move(content));
    return MappedBytes{owner, *owner};
  };
  return std::shared_ptr<const TokenFile>(new TokenFile(bytes(std::move(index)), bytes(std::move(ids)), name));
}

template <class T>
T TokenFile::number(std::size_t at) const {
  T value;
  std::memcpy(&value, index_.view.data() + at, sizeof value);
  return value;
}

TokenFile::TokenFile(MappedBytes index, MappedBytes ids, std::string name)
    : index_(std::move(index)), ids_(std::move(ids)), name_(std::move(name)) {
  const auto refuse = [&](const std::string& what) { throw DataError(fmt::format("{}.idx: {}", name_, what)); };
  if (index_.view.empty()) refuse("is empty");
  if (index_.view.size() < kTokenHeader || !index_.view.starts_with(kTokenMagic))
    refuse("not an index of Megatron-LM's data sets: it does not begin with MMIDIDX");
  if (const auto version = number<std::int64_t>(kTokenMagic.size()); version != kTokenFileVersion)
    refuse(fmt::format("has version {}; version {} is read", version, kTokenFileVersion));
  static const std::map<int, StoredIds> types{
      {kUint8, stored_as<std::uint8_t>()}, {kInt8, stored_as<std::int8_t>()},   {kInt16, stored_as<std::int16_t>()},
      {kInt32, stored_as<std::int32_t>()}, {kInt64, stored_as<std::int64_t>()}, {kUint16, stored_as<std::uint16_t>()}};
  const int type = number<std::uint8_t>(kTokenMagic.size() + 8);
  const auto stored = types.find(type);
  if (stored == types.end())
    refuse(
        fmt::format("its type of ids has number {}; integers are read (uint8 1, int8 2, int16 3, int32 4, int64 5, "
                    "uint16 8)",
                    type));
  bytes_each_ = stored->second.bytes_each;
  copy_ = stored->second.copy;
  sequences_ = number<std::int64_t>(kTokenMagic.size() + 9);
  const auto indices = number<std::int64_t>(kTokenMagic.size() + 17);
  const auto most = static_cast<std::int64_t>(index_.view.size());
  const auto wanted = [&] {
    return static_cast<std::int64_t>(kTokenHeader) + sequences_ * (4 + 8) + indices * std::int64_t{8};
  };
  if (sequences_ < 0 || indices < 1 || sequences_ > most || indices > most || wanted() > most)
    refuse(fmt::format("its {} bytes are too few for {} sequences and {} document indices; it is damaged", most,
                       sequences_, indices));
  documents_ = indices - 1;
  lengths_ = kTokenHeader;
  pointers_ = lengths_ + 4 * static_cast<std::size_t>(sequences_);
  document_indices_ = pointers_ + 8 * static_cast<std::size_t>(sequences_);
  check_sequences();
}

/// The sequences must follow each other without gaps, and the documents must be ranges of them.
void TokenFile::check_sequences() {
  const auto total = static_cast<std::int64_t>(ids_.view.size());
  std::int64_t at = 0, document = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const auto ids = number<std::int32_t>(lengths_ + 4 * static_cast<std::size_t>(i));
    const auto pointer = number<std::int64_t>(pointers_ + 8 * static_cast<std::size_t>(i));
    if (ids < 0 || pointer != at)
      throw DataError(
          fmt::format("{}.idx: sequence {} has {} ids from byte {} on, where byte {} is the next; it is "
                      "damaged",
                      name_, i, ids, pointer, at));
    at += ids * bytes_each_;
  }
  if (at != total)
    throw DataError(
        fmt::format("{0}.bin: has {1} bytes, but {0}.idx has sequences of {2} bytes; the two do not belong "
                    "together, or one is damaged",
                    name_, total, at));
  for (std::int64_t i = 0; i <= documents_; ++i) {
    const auto first = number<std::int64_t>(document_indices_ + 8 * static_cast<std::size_t>(i));
    if (first < document || first > sequences_)
      throw DataError(
          fmt::format("{}.idx: document {} begins with sequence {} of {}; it is damaged", name_, i, first, sequences_));
    document = first;
  }
  tokens_ = at / bytes_each_;
}

std::int64_t TokenFile::length(std::int64_t sequence) const {
  return number<std::int32_t>(lengths_ + 4 * static_cast<std::size_t>(sequence));
}

std::int64_t TokenFile::begin(std::int64_t sequence) const {
  if (sequence == sequences_) return tokens_;
  return number<std::int64_t>(pointers_ + 8 * static_cast<std::size_t>(sequence)) / bytes_each_;
}

std::int64_t TokenFile::document_begin(std::int64_t document) const {
  return begin(number<std::int64_t>(document_indices_ + 8 * static_cast<std::size_t>(document)));
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TRIREME_CHECK(first >= 0 && first + count <= tokens_, "{} ids from {} of {}", count, first, tokens_);
  copy_(ids_.view.data() + first * bytes_each_, out);
}

TokenWriter::TokenWriter(const std::string& prefix, std::int64_t vocabulary)
    : prefix_(prefix), narrow_(vocabulary <= 65536) {
  if (!prefix.empty()) file_ = std::make_unique<FileWriter>(prefix + ".bin");
}

TokenWriter::~TokenWriter() = default;

template <class T>
void TokenWriter::append(std::span<const std::int32_t> ids) {
  const auto at = bytes_.size();
  bytes_.resize(at + ids.size() * sizeof(T));
  auto* to = bytes_.data() + at;
  for (const auto id : ids) {
    const auto value = static_cast<T>(id);
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  }
  crc_ = crc32(crc_, bytes_.data() + at, bytes_.size() - at);
}

void TokenWriter::add_sequence(std::span<const std::int32_t> ids) {
  if (ids.size() > std::numeric_limits<std::int32_t>::max())
    throw DataError(
        fmt::format("a text has {} tokens, which is more than a sequence of the token files can have; "
                    "split it",
                    ids.size()));
  narrow_ ? append<std::uint16_t>(ids) : append<std::int32_t>(ids);
  lengths_.push_back(static_cast<std::int32_t>(ids.size()));
  if (file_ && bytes_.size() >= kFlushBytes) flush();
}

void TokenWriter::end_document() {
  if (documents_.back() != sequences()) documents_.push_back(sequences());
}

void TokenWriter::flush() {
  file_->write(bytes_.data(), bytes_.size());
  bytes_.clear();
}

std::string TokenWriter::digest() const {
  const auto lengths = crc32(0, lengths_.data(), lengths_.size() * sizeof(std::int32_t));
  return fmt::format("{:08x}{:08x}", crc_, lengths);
}

std::string TokenWriter::index() const {
  std::string out(kTokenMagic);
  put_numbers(out, std::vector{kTokenFileVersion});
  out += static_cast<char>(narrow_ ? kUint16 : kInt32);
  put_numbers(out, std::vector{sequences(), static_cast<std::int64_t>(documents_.size())});
  put_numbers(out, lengths_);
  std::vector<std::int64_t> pointers;
  std::int64_t at = 0;
  for (const std::int64_t length : lengths_) {
    pointers.push_back(at);
    at += length * (narrow_ ? 2 : 4);
  }
  put_numbers(out, pointers);
  put_numbers(out, documents_);
  return out;
}

std::shared_ptr<const TokenFile> TokenWriter::finish(const std::string& name) {
  if (!file_) return TokenFile::in_memory(index(), std::move(bytes_), name);
  flush();
  file_->commit();
  write_file(prefix_ + ".idx", index());
  return TokenFile::open(prefix_);
}

}  // namespace trireme::datasets
