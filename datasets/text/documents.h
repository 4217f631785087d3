// The documents of files of text, in pieces, so that a file of any size is never in memory as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::datasets {

enum class Documents { file, lines, blank_lines };

struct DocumentOptions {
  Documents documents = Documents::file;  ///< of files other than .jsonl
  std::string text_key = "text";          ///< of .jsonl, whose lines are documents
  std::size_t piece = std::size_t{8} << 20;
};

/// A part of a document's text. Longer documents than DocumentOptions::piece have several, which end at line breaks
/// between two lines with text: tokenizers that split text there give the same tokens as for the whole.
struct DocumentPiece {
  std::string text;
  bool ends = true;         ///< the document
  std::string_view path{};  ///< of its file, among those given to read_documents()
  std::int64_t line = 0;    ///< its first in the file, from 1
};

/// Whether the lines of this file are JSON objects, by its ending.
bool is_jsonl(const std::string& path);

/// Calls use(piece) for all documents of the files, in order; empty ones are left out.
/// @throws DataError that names file and line: text that is not UTF-8, invalid JSON, an object without the key
void read_documents(const std::vector<std::string>& files, const DocumentOptions& options,
                    const std::function<void(DocumentPiece)>& use);

/// For a folder all of whose files are read as texts of the train split: none may be a table, except .jsonl, and none
/// may begin with a split's name, as train-00000-of-00002.txt does.
/// @throws DataError that names one
void check_only_texts(const std::string& folder);

}  // namespace trireme::datasets
