// Models of the Hugging Face Hub that are already on this machine: "google/vit-base-patch16-224" is looked up in the
// cache that huggingface_hub fills. Nothing is downloaded.
//
// Layout of the cache, as huggingface_hub documents it:
//   models--google--vit-base-patch16-224/refs/main                 the name of a commit
//                                        /snapshots/COMMIT/...     the files of that commit
// It lies in HF_HUB_CACHE, else in HF_HOME/hub, else in XDG_CACHE_HOME/huggingface/hub, else in
// ~/.cache/huggingface/hub.
#pragma once

#include <string>

namespace trireme::checkpoint {

/// The cache's folder; it need not exist.
std::string hub_cache();

/// Whether `name_or_path` can be the name of a model on the Hub: "model" or "owner/model", of letters, digits, '-',
/// '_', '.'.
bool is_hub_name(const std::string& name_or_path);

/// Where weights are, for what a user wrote: a path that exists as it is; a Hub name's snapshot in the cache (the one
/// that refs/main names, else the only one); anything else as it is. @throws CheckpointError for an "owner/model" that
/// is neither a path nor in the cache: says how to download it.
std::string locate_weights(const std::string& name_or_path);

}  // namespace trireme::checkpoint
