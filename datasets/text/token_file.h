// TokenFile: sequences of token ids in the two files of Megatron-LM's indexed data sets, which stay memory-mapped.
//
// PREFIX.bin: the ids of all sequences, one after the other, little-endian. PREFIX.idx: "MMIDIDX" and two zero bytes,
// the version (int64, 1), the ids' type (1 byte: uint8 1, int8 2, int16 3, int32 4, int64 5, uint16 8), the number of
// sequences and of document indices (int64 each), each sequence's length (int32), its first byte in PREFIX.bin (int64),
// and the first sequence of each document, then the number of sequences (int64). What follows is passed over.
// Invariant: after construction every sequence is within the ids, so no read is out of bounds. Reading is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mapped_bytes.h"

namespace trireme {
class FileWriter;
}

namespace trireme::datasets {

class TokenFile {
 public:
  /// Opens PREFIX.idx and PREFIX.bin. @throws DataError that names the file and what is wrong with it
  static std::shared_ptr<const TokenFile> open(const std::string& prefix);
  /// The same from the files' contents. `name`: in the place of the prefix, for errors.
  static std::shared_ptr<const TokenFile> in_memory(std::string index, std::string ids, const std::string& name);

  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  [[nodiscard]] std::int64_t length(std::int64_t sequence) const;
  /// The number of ids before the sequence; of all ids for sequences().
  [[nodiscard]] std::int64_t begin(std::int64_t sequence) const;
  [[nodiscard]] std::int64_t documents() const { return documents_; }
  /// The number of ids before the document; of all ids for documents().
  [[nodiscard]] std::int64_t document_begin(std::int64_t document) const;
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// Copies `out.size()` ids from number `first` on, counted over all sequences. @pre they exist
  void read(std::int64_t first, std::span<std::int64_t> out) const;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::string_view index_bytes() const { return index_.view; }
  [[nodiscard]] std::string_view id_bytes() const { return ids_.view; }

 private:
  TokenFile(MappedBytes index, MappedBytes ids, std::string name);
  void check_sequences();
  template <class T>
  [[nodiscard]] T number(std::size_t at) const;

  MappedBytes index_, ids_;  ///< files, or in memory
  std::string name_;
  void (*copy_)(const char* from, std::span<std::int64_t> out) = nullptr;  ///< reads ids in the file's type
  std::int64_t bytes_each_ = 0, sequences_ = 0, documents_ = 0, tokens_ = 0;
  std::size_t lengths_ = 0, pointers_ = 0, document_indices_ = 0;  ///< where these arrays begin in the index
};

/// Writes such files, or their contents in memory.
class TokenWriter {
 public:
  /// `prefix`: "" for memory. `vocabulary`: ids are below it. @throws CheckpointError when a file cannot be created
  TokenWriter(const std::string& prefix, std::int64_t vocabulary);
  ~TokenWriter();
  /// @throws CheckpointError when the disk is full; DataError for more than 2^31 - 1 ids
  void add_sequence(std::span<const std::int32_t> ids);
  /// The sequences since the last document are one.
  void end_document();
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  /// Of everything that was written.
  [[nodiscard]] std::string digest() const;
  /// Closes the files and opens them for reading. `name`: for errors. @throws CheckpointError
  std::shared_ptr<const TokenFile> finish(const std::string& name);

 private:
  template <class T>
  void append(std::span<const std::int32_t> ids);
  void flush();
  [[nodiscard]] std::string index() const;

  std::string prefix_;
  bool narrow_;  ///< uint16 instead of int32
  std::unique_ptr<FileWriter> file_;
  std::string bytes_;  ///< those that are not in the file yet; all without a file
  std::uint32_t crc_ = 0;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> documents_{0};
};

}  // namespace trireme::datasets
