// BackgroundSaver: saves checkpoints while the training goes on. begin() copies this rank's slices to host memory, and
// a thread writes them. At most one checkpoint is in flight, so that the memory is that of one copy.
//
// The thread communicates with no rank, because collectives must have the same order everywhere. Instead each rank says
// between its steps whether its thread is busy or has failed (is_busy(), has_failed()); once the caller knows that no
// rank's thread is busy, or that one has failed, it calls advance() on all ranks. That takes two calls for a
// checkpoint: after the ranks' files are written, and after the leaders have published it. wait() does the rest at
// once.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/checkpoint/checkpoint_save.h"

namespace trireme::checkpoint {

class BackgroundSaver {
 public:
  /// `storage`: of the run's folder. The default is that of a single rank.
  explicit BackgroundSaver(comm::Mesh& mesh, Storage storage = {}) : mesh_(mesh), storage_(std::move(storage)) {}
  /// As abandon().
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  /// Allocates the memory for such contents, which begin() does otherwise. Not collective.
  void reserve(CheckpointContents contents);
  /// The bytes of host memory that this rank's copies take.
  [[nodiscard]] std::int64_t capacity() const { return staging_.capacity(); }

  /// Starts to save. When it returns the tensors may change. Collective. @pre is_idle()
  /// @throws CheckpointError on every rank, when the folder cannot be made
  void begin(const std::string& run_dir, CheckpointContents contents, std::int64_t keep);
  [[nodiscard]] bool is_idle() const { return !save_; }
  /// @pre !is_idle()
  [[nodiscard]] std::int64_t step() const { return save_->step(); }
  /// Whether this rank's thread works, and whether what it did has failed. Neither waits.
  [[nodiscard]] bool is_busy() const { return busy_; }
  [[nodiscard]] bool has_failed() const { return failed_; }

  /// Goes on when no rank is busy, or `any_failed`, which must be the same on every rank: then the others stop writing.
  /// Returns the checkpoint when it is complete. Collective. @throws CheckpointError on every rank; nothing of the
  /// checkpoint is left then, and the saver is idle
  std::optional<SavedCheckpoint> advance(bool any_failed);
  /// Waits for the checkpoint. Collective. @pre !is_idle() @throws CheckpointError as advance()
  SavedCheckpoint wait();
  /// Lets this rank's thread stop writing soon. Waits for nothing, not even a disk that hangs. abandon() does the rest.
  void cancel() noexcept {
    if (save_) save_->cancel();
  }
  /// Gives the checkpoint in flight up, if there is one: waits for the thread, and removes the folder. Not collective:
  /// for a rank that ends with an error. A rank that goes on writing for a moment may leave a part of the folder, like
  /// a crash.
  void abandon() noexcept;

 private:
  void run(const std::function<void()>& work);
  void join();

  comm::Mesh& mesh_;
  Storage storage_;
  HostStaging staging_;
  std::optional<CheckpointSave> save_;
  bool is_publishing_ = false;
  std::thread thread_;
  std::atomic<bool> busy_ = false, failed_ = false;
};

}  // namespace trireme::checkpoint
