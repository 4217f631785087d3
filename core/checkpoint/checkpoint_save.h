// CheckpointSave: the making of one checkpoint, in parts, so that the slow ones can run on a thread beside the
// training:
//
//   CheckpointSave save(...);  // collective: makes the folder step-N.tmp
//   save.write();              // local: this rank's files, and on rank 0 state.json and the like
//   save.collect();            // collective, small: what each rank has written
//   save.publish();            // local, leaders: manifest, name, removal of older checkpoints
//   save.finish();             // collective, small: every rank learns how it ended
//
// The leader of a storage (storage.h) is its first rank: rank 0, where all ranks share a file system. Else each storage
// has what its ranks have written, state.json and the like, and a manifest of all, and finish() gives it its name when
// all have that.
//
// write() and publish() communicate with no rank and throw nothing: what fails is kept, and finish() throws it on every
// rank. All parts must be called, in this order, and one at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/host_staging.h"
#include "core/checkpoint/storage.h"
#include "core/checkpoint/train_state.h"

namespace trireme::checkpoint {

struct SavedCheckpoint {
  std::string folder;
  std::int64_t step = 0;
  std::uint64_t bytes = 0;  ///< of all files but the manifest; only on rank 0
  double write_s = 0;       ///< the longest time of a rank's write(), and that of publish(); only on rank 0
  /// Why its name may not be on the disk, so that it may be gone after a power failure; "" if it is. Only on rank 0.
  /// The older checkpoints are all kept then.
  std::string warning{};
};

class CheckpointSave {
 public:
  /// Removes what earlier saves have left, and makes the folder. @throws CheckpointError on every rank
  CheckpointSave(const std::string& run_dir, CheckpointContents contents, std::int64_t keep, comm::Mesh& mesh,
                 Storage storage);

  /// From here on write() reads copies of the tensors. `staging` must outlive this object.
  void stage(HostStaging& staging);
  void write();
  void collect();
  void publish();
  /// @throws CheckpointError on every rank, with the same message; nothing of the new checkpoint is left then
  SavedCheckpoint finish();

  /// All of them, one after the other. Collective. @throws as finish()
  SavedCheckpoint run();

  /// Ends write() early; finish() then throws the problem of another rank.
  void cancel() { cancelled_ = true; }
  /// Whether write() or publish() has failed on this rank. Call it on the thread that ran them.
  [[nodiscard]] bool has_failed() const { return !problem_.empty(); }
  /// Whether this rank has anything to publish.
  [[nodiscard]] bool leads() const { return storage_.leads(); }
  /// Removes the folder of a save that is not finished; only on leaders.
  void remove() const noexcept;
  [[nodiscard]] std::int64_t step() const { return contents_.record.progress.global_step; }

 private:
  void agree(const std::string& problem);
  [[nodiscard]] Manifest assembled();
  void publish_everywhere();
  [[nodiscard]] std::map<std::string, std::string> record_texts() const;
  [[nodiscard]] bool is_first() const { return mesh_.world().rank() == 0; }

  std::string run_dir_;
  CheckpointContents contents_;  ///< its lists are this rank's own slices
  std::int64_t keep_;
  comm::Mesh& mesh_;
  Storage storage_;
  std::string folder_, temporary_;
  HostStaging* staging_ = nullptr;
  std::atomic<bool> cancelled_ = false;
  Manifest mine_;
  std::string problem_;             ///< of this rank, or "" so far
  std::string warning_;             ///< SavedCheckpoint::warning
  bool is_half_published_ = false;  ///< has its name here, and may have failed to get it on other hosts
  std::vector<std::string> parts_;  ///< of all ranks, on leaders
  double seconds_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace trireme::checkpoint
