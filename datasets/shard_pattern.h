// Shards: the files that together hold one split, named by one text as users of WebDataset write it.
#pragma once

#include <string>
#include <vector>

namespace trireme::datasets {

/// The files that `pattern` names, which is
/// - a file, or a pattern with braces, as in bash: "train-{0000..0146}.tar" (in the order of the numbers, with leading
///   zeros if the first number has some) and "{a,b}.tar"; all of these files must exist;
/// - a pattern with `*`, `?` or `[...]`: the files that match, in byte order; as in bash, a hidden name only matches a
///   pattern with its dot;
/// - a folder: its files with one of these endings, in byte order, without hidden ones (folder_entries.h).
/// @throws DataError when there is no such file, or a file is named twice
std::vector<std::string> expand_shards(const std::string& pattern, const std::vector<std::string>& endings = {".tar"});

}  // namespace trireme::datasets
