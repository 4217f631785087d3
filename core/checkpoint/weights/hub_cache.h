// Finds models of the Hugging Face Hub that are already on this machine: "google/vit-base-patch16-224" is looked up in
// the cache that huggingface_hub maintains. Nothing is downloaded.
//
// Layout of the cache, as documented by huggingface_hub:
//   models--google--vit-base-patch16-224/refs/main                 the name of a commit
//                                        /snapshots/COMMIT/...     the files of that commit
// The cache is in HF_HUB_CACHE, or else in HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
#pragma once

#include <string>

namespace trireme::checkpoint {

/// The cache's folder, which may not exist.
std::string hub_cache();

/// Whether `name_or_path` can be the name of a model on the Hub: "model" or "owner/model" (letters, digits, '-', '_',
/// '.').
bool is_hub_name(const std::string& name_or_path);

/// Finds the weights that a user named: an existing path unchanged; for a Hub name, its snapshot in the cache (the one
/// that refs/main names, or else the only one); any other text unchanged. @throws CheckpointError for an "owner/model"
/// that is neither a path nor in the cache; the message says how to download it.
std::string locate_weights(const std::string& name_or_path);

}  // namespace trireme::checkpoint
