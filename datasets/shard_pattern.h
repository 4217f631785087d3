// Shards: the files that together hold one split, named by one text as users of WebDataset write it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::datasets {

/// What precedes a shell command that writes a shard to its standard output.
inline constexpr std::string_view kCommandPrefix = "pipe:";
inline bool is_command(const std::string& shard) { return shard.starts_with(kCommandPrefix); }

/// The files that `pattern` names, which is
/// - a file, or a pattern with braces, as in bash: "train-{0000..0146}.tar" (in the order of the numbers, with leading
///   zeros if the first number has some) and "{a,b}.tar"; all of these files must exist;
/// - a pattern with `*`, `?` or `[...]`: the files that match, in byte order; as in bash, a hidden name only matches a
///   pattern with its dot;
/// - a folder: its files with one of these endings, in byte order, without hidden ones (folder_entries.h);
/// - "pipe:COMMAND", of which the commands are returned, with the prefix: braces with a range or a comma and without
///   white space are expanded as in names of files. The shell's own ("${HOME}", "{ print $1, $2 }") stay, and nobody
///   can list what `*` matches.
/// @throws DataError when there is no such file, or a file or command is named twice
std::vector<std::string> expand_shards(const std::string& pattern, const std::vector<std::string>& endings = {".tar"});

}  // namespace trireme::datasets
