#include "core/checkpoint/checkpoint_save.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/shard_writer.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/host_values.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// The message of the error of a part of a save, or "".
std::string problem_of_save(const std::function<void()>& action) {
  return problem_of(action, "a checkpoint cannot be written");
}

/// The problem of a rank whose writing was cancelled, because another one's failed.
constexpr const char* kCancelled = "cancelled";
struct Cancelled : CheckpointError {
  Cancelled() : CheckpointError(kCancelled) {}
};

}  // namespace

std::vector<CheckpointContents::Group> CheckpointContents::groups() {
  std::vector<Group> out{{kWeights, &weights}, {kOptimizer, &optimizer}};
  if (average) out.push_back({kAverage, &*average});
  return out;
}

CheckpointSave::CheckpointSave(const std::string& run_dir, CheckpointContents contents, std::int64_t keep,
                               comm::Mesh& mesh, Storage storage)
    : run_dir_(run_dir), contents_(std::move(contents)), keep_(keep), mesh_(mesh), storage_(std::move(storage)) {
  TRIREME_CHECK(keep >= 1 && step() >= 0, "cannot save a checkpoint: keep {}, step {}", keep, step());
  folder_ = checkpoint_folder(run_dir, step());
  temporary_ = folder_ + kTemporary;
  for (const auto& group : contents_.groups()) *group.slices = own_slices(*group.slices, mesh, storage_);
  agree(problem_of_save([&] {
    if (!leads()) return;
    remove_leftovers(run_dir);
    make_folder(temporary_);
    if (contents_.best.empty()) return;
    // Now, because a later evaluation may replace the file while the tensors are written.
    link_file(contents_.best, path_in(temporary_, kBest));
    mine_.files[kBest] = contents_.best_digest;
  }));
}

/// Every rank learns of a problem of a leader, so that all of them can go on or stop together.
void CheckpointSave::agree(const std::string& problem) {
  const auto found =
      storage_.is_shared() ? problem_of_first_rank(mesh_.world(), problem) : first_problem(mesh_.world(), problem);
  if (found.empty()) return;
  remove();
  throw CheckpointError(found);
}

void CheckpointSave::remove() const noexcept {
  std::error_code ignored;
  if (!leads()) return;
  if (is_half_published_) fs::rename(folder_, temporary_, ignored);  // at once no complete checkpoint
  fs::remove_all(temporary_, ignored);
}

void CheckpointSave::stage(HostStaging& staging) {
  staging_ = &staging;
  staging.clear();
  const auto groups = contents_.groups();
  std::int64_t bytes = 0;
  for (const auto& group : groups) bytes += HostStaging::bytes_for(*group.slices);
  staging.reserve(bytes, mesh_.world().device());
  for (const auto& group : groups) staging.copy(*group.slices);
}

/// Rank 0's part of a checkpoint besides its tensors and the best weights.
std::map<std::string, std::string> CheckpointSave::record_texts() const {
  auto out = contents_.texts;
  out[kState] = state_text(contents_.record);
  out[kConfig] = contents_.record.config;
  return out;
}

void CheckpointSave::write() {
  const auto begin = Clock::now();
  problem_ = problem_of_save([&] {
    make_folder(temporary_);  // of another host, which may not have seen it yet
    if (staging_ != nullptr) staging_->wait();
    if (is_first())
      for (const auto& [file, text] : record_texts()) mine_.files[file] = write_file(path_in(temporary_, file), text);
    const auto check = [&] {
      if (cancelled_) throw Cancelled();
    };
    for (const auto& [group, own] : contents_.groups()) {
      add_part(mine_, write_shards(temporary_, group, *own, mesh_.world().rank(), contents_.most_file_bytes, check));
      mine_.tensors[group];  // also where all of its tensors are written by others, or there are none
    }
  });
  seconds_ = seconds_since(begin);
}

void CheckpointSave::collect() {
  const auto& world = mesh_.world();
  nlohmann::json part{
      {"problem", problem_}, {"seconds", seconds_}, {"manifest", problem_.empty() ? manifest_text(mine_) : ""}};
  if (storage_.is_shared()) {
    parts_ = comm::gather_text(world.group(), json_text(part));
    return;
  }
  if (is_first() && problem_.empty()) part["texts"] = record_texts();
  parts_ = comm::all_gather_text(world.group(), json_text(part));
}

/// The manifest of what all ranks have written. @throws CheckpointError with the problem of a rank
Manifest CheckpointSave::assembled() {
  Manifest manifest;
  manifest.hosts = storage_.hosts;
  bool is_cancelled = false;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    const auto part = parse_json(parts_[rank]);
    const std::string problem = part.at("problem");
    if (!problem.empty() && problem != kCancelled) throw CheckpointError(problem);
    is_cancelled = is_cancelled || !problem.empty();
    if (is_cancelled) continue;
    seconds_ = std::max(seconds_, part.at("seconds").get<double>());
    auto read = read_part(part.at("manifest"));
    if (!storage_.is_shared())
      for (const auto& file : files_in_parts(read))
        if (read.files.contains(file)) read.host_of[file] = storage_.of_rank.at(rank);
    add_part(manifest, read);
    // What all need is on every storage.
    if (part.contains("texts") && storage_.number() != 0)
      for (const auto& [file, text] : part.at("texts").items())
        write_file(path_in(temporary_, file), text.get<std::string>());
  }
  if (is_cancelled) throw CheckpointError("the writing of a checkpoint was cancelled");
  return manifest;
}

void CheckpointSave::publish() {
  if (!leads()) return;
  const auto begin = Clock::now();
  seconds_ = 0;
  problem_ = problem_of_save([&] {
    const auto manifest = assembled();
    verify_files(temporary_, manifest, Verify::sizes);
    check_complete(manifest, path_in(temporary_, kManifest));
    write_file(path_in(temporary_, kManifest), manifest_text(manifest));
    for (const auto& [name, digest] : manifest.files) bytes_ += digest.bytes;
    if (!storage_.is_shared()) return;  // finish() gives it its name
    warning_ = publish_folder(temporary_, folder_, folder_ + kReplaced);
    if (warning_.empty()) remove_older(run_dir_, folder_, keep_);
  });
  seconds_ += seconds_since(begin);
}

/// Every storage has its part on the disk. The older ones stay until all have the new one under its name.
void CheckpointSave::publish_everywhere() {
  const auto problem = problem_of_save([&] {
    if (leads()) warning_ = publish_folder(temporary_, folder_, folder_ + kReplaced);
  });
  is_half_published_ = problem.empty();
  agree(problem);
  is_half_published_ = false;
  warning_ = first_problem(mesh_.world(), warning_);
  if (leads() && warning_.empty()) remove_older(run_dir_, folder_, keep_);
}

SavedCheckpoint CheckpointSave::finish() {
  agree(problem_);
  if (!storage_.is_shared()) publish_everywhere();
  return {.folder = folder_, .step = step(), .bytes = bytes_, .write_s = seconds_, .warning = warning_};
}

SavedCheckpoint CheckpointSave::run() {
  write();
  collect();
  publish();
  return finish();
}

}  // namespace trireme::checkpoint
