#include "core/checkpoint/file_blocks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/checkpoint/manifest.h"

namespace trireme::checkpoint {
namespace {

constexpr std::uint64_t kMostAtOnce = std::uint64_t{1} << 20;  // bytes that are read and then summed

std::uint64_t block_size(const FileDigest& digest) {
  return digest.sums.empty() ? std::max<std::uint64_t>(digest.bytes, 1) : digest.block_bytes;
}

}  // namespace

FileBlocks::FileBlocks(std::string path, FileDigest listed) : path_(std::move(path)), listed_(std::move(listed)) {
  if (const auto problem = file_problem(path_, listed_, Verify::sizes); !problem.empty())
    throw CheckpointError(problem);
  const auto block = block_size(listed_);
  is_verified_.resize((listed_.bytes + block - 1) / block);
}

void FileBlocks::open() {
  if (!file_) file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) throw CheckpointError(fmt::format("{}: cannot be opened: {}", path_, std::strerror(errno)));
}

void FileBlocks::verify(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const auto block = block_size(listed_);
  for (auto i = begin / block; i * block < end; ++i) {
    if (is_verified_.at(i)) continue;
    open();
    verify_block(i);
    is_verified_[i] = true;
  }
}

void FileBlocks::verify_part(int index, int count) {
  const auto blocks = is_verified_.size(), block = block_size(listed_);
  const auto bound = [&](int part) {
    return std::min(listed_.bytes, blocks * static_cast<std::size_t>(part) / static_cast<std::size_t>(count) * block);
  };
  verify(bound(index), bound(index + 1));
}

void FileBlocks::verify_block(std::uint64_t block) {
  const auto size = block_size(listed_), begin = block * size, end = std::min(listed_.bytes, begin + size);
  std::vector<char> bytes(std::min(end - begin, kMostAtOnce));
  const bool has_sums = !listed_.sums.empty();
  std::uint32_t sum = has_sums && block > 0 ? listed_.sums[block - 1] : 0;
  for (auto at = begin; at < end;) {
    const ::ssize_t got =
        ::pread(file_.get(), bytes.data(), std::min<std::uint64_t>(bytes.size(), end - at), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw CheckpointError(fmt::format("{}: cannot be read: {}", path_, got < 0 ? std::strerror(errno) : "it ends"));
    sum = crc32(sum, bytes.data(), static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
    bytes_read_ += static_cast<std::uint64_t>(got);
  }
  const auto listed = has_sums ? listed_.sums[block] : listed_.crc32;
  if (sum != listed)
    throw CheckpointError(
        fmt::format("{} is damaged: bytes {} to {} have the CRC-32 {:08x}, but the manifest says "
                    "{:08x}",
                    path_, begin, end - 1, sum, listed));
}

}  // namespace trireme::checkpoint
