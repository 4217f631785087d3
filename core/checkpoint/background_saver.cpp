#include "core/checkpoint/background_saver.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "core/base/device_thread.h"
#include "core/base/error.h"
#include "core/checkpoint/shard_writer.h"

namespace trireme::checkpoint {
namespace {

/// While it exists, threads are created with all signals blocked: the main thread handles them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

BackgroundSaver::~BackgroundSaver() { abandon(); }

void BackgroundSaver::reserve(CheckpointContents contents) {
  std::int64_t bytes = 0;
  for (const auto& group : contents.groups())
    bytes += HostStaging::bytes_for(own_slices(*group.slices, mesh_, storage_));
  staging_.reserve(bytes, mesh_.world().device());
}

/// Runs the work on the thread; here, if the system has no thread for it.
void BackgroundSaver::run(const std::function<void()>& work) {
  const auto body = [this, work] {
    work();
    failed_ = save_->has_failed();
    busy_ = false;
  };
  busy_ = true;
  try {
    const SignalsBlocked blocked;
    thread_ = device_thread(mesh_.world().device(), body);
  } catch (const std::system_error&) {
    body();
  }
}

void BackgroundSaver::join() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSaver::begin(const std::string& run_dir, CheckpointContents contents, std::int64_t keep) {
  TRIREME_CHECK(is_idle(), "another checkpoint is being saved");
  failed_ = is_publishing_ = false;
  save_.emplace(run_dir, std::move(contents), keep, mesh_, storage_);
  save_->stage(staging_);
  run([this] { save_->write(); });
}

std::optional<SavedCheckpoint> BackgroundSaver::advance(bool any_failed) {
  if (any_failed) {
    save_->cancel();
    return wait();
  }
  join();
  if (is_publishing_) return wait();
  save_->collect();
  is_publishing_ = true;
  if (save_->leads()) run([this] { save_->publish(); });
  return std::nullopt;
}

SavedCheckpoint BackgroundSaver::wait() {
  join();
  if (!is_publishing_) {
    save_->collect();
    save_->publish();
  }
  // The saver is idle afterwards, also when finish() throws.
  struct End {
    std::optional<CheckpointSave>& save;
    ~End() { save.reset(); }
  } const end{save_};
  return save_->finish();
}

void BackgroundSaver::abandon() noexcept {
  if (!save_) return;
  cancel();
  join();
  save_->remove();
  save_.reset();
}

}  // namespace trireme::checkpoint
