#include "core/comm/flight/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/base/mapped_bytes.h"
#include "core/base/planned_device.h"
#include "core/base/random.h"
#include "core/comm/flight/folder.h"
#include "core/comm/flight/reader.h"
#include "core/launch/parent.h"

namespace trireme::comm::flight {
namespace {

constexpr int kBusySlots = 8;  // of the ring, that are passed over because their operations are not complete

RankRecord nowhere{};  // written to where there is no file
std::atomic<RankRecord*> current{&nowhere};
std::atomic<bool> any_lost{false}, on_device{false};

/// Of watch_phases(): for the process, as the record is.
std::function<void(Phase, bool)>& phase_watch() {
  static std::function<void(Phase, bool)> watch;
  return watch;
}

/// What is open; written by open() and end() alone.
struct Files {
  std::string folder;
  int local_size = 1;
  Mapping record, control;
  std::vector<Mapping> earlier;  // other threads may still write to the record of a World before
};
Files& files() {
  static auto* const opened = new Files;  // never destroyed: detached threads may write until the process ends
  return *opened;
}

RankRecord& record() { return *current.load(std::memory_order_acquire); }

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

template <class T>
void store(T& field, T value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<T>(field).store(value, order);
}
template <class T>
T load(const T& field, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref<T>(const_cast<T&>(field)).load(order);
}

/// Copies as much of a text as there is room for; the last byte is 0.
template <std::size_t N>
void copy_text(std::array<char, N>& to, std::string_view text) {
  const auto length = std::min(text.size(), N - 1);
  std::memcpy(to.data(), text.data(), length);
  std::memset(to.data() + length, 0, N - length);
}

/// Makes the file, zeroed, or maps the one that exists. Its blocks are reserved, so that a full disk is noticed here
/// and not by a signal at a later store. Null when that fails.
template <class T>
Mapping map_new(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file || posix_fallocate(file.get(), 0, sizeof(T)) != 0) return {};
  return map_memory(file.get(), sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED);
}

void fill(RankRecord& to, const LaunchInfo& info) {
  std::memset(&to, 0, sizeof to);
  to.rank = info.rank;
  to.size = info.size;
  to.pid = getpid();
  to.process_start = process_start(to.pid);
  to.pid_namespace = pid_namespace();
  to.microbatch = to.block = -1;
  to.phase = Phase::start;
  (void)gethostname(to.host.data(), to.host.size() - 1);
  to.version = kVersion;
  store(to.magic, kMagic, std::memory_order_release);  // last: a reader ignores the record before
}

// exit() in the middle of a run is no death.
void on_exit() {
  auto& mine = record();
  if (load(mine.end) == EndKind::none) store(mine.end, EndKind::error, std::memory_order_release);
}

}  // namespace

void open(const LaunchInfo& info) {
  auto& opened = files();
  any_lost = false;
  const auto where = rank_folder(info);
  if (where.empty()) return;
  const bool shares = !parent::listens();
  FileDescriptor lock;
  if (shares) {  // one rank at a time: each finds the records of those that have come before it
    lock = FileDescriptor(::open((where + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (flock(lock.get(), LOCK_EX) == 0) remove_left_over(where);
  }
  auto made = map_new<RankRecord>(fmt::format("{}/{}{}", where, kRankFile, info.rank));
  Mapping control;
  if (shares) control = map_new<Control>(fmt::format("{}/{}", where, kControlFile));
  if (!made || (shares && !control)) return;
  fill(*static_cast<RankRecord*>(made.get()), info);
  if (opened.record) opened.earlier.push_back(std::move(opened.record));
  opened.folder = where;
  opened.local_size = info.local_size;
  opened.record = std::move(made);
  opened.control = std::move(control);
  current.store(static_cast<RankRecord*>(opened.record.get()), std::memory_order_release);
  static const int once = std::atexit(on_exit);
  (void)once;
}

std::string folder() { return files().folder; }

Control* shared_control() { return static_cast<Control*>(files().control.get()); }

GroupName join(const std::string& axis, const std::vector<int>& ranks, std::uint64_t made) {
  GroupName name{.id = random::hash(fmt::format("{} {} {}", axis, made, fmt::join(ranks, " "))) | 1};
  copy_text(name.axis, axis);
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& to = record();
  auto& group = to.groups[to.groups_joined++ % kGroups];
  store(group.id, std::uint64_t{0});
  group.axis = name.axis;
  group.rank = static_cast<std::int32_t>(std::find(ranks.begin(), ranks.end(), to.rank) - ranks.begin());
  group.size = static_cast<std::int32_t>(ranks.size());
  store(group.id, name.id, std::memory_order_release);
  return name;
}

Entry enter(const GroupName& group, const Call& call) {
  auto& to = record();
  auto number = std::atomic_ref(to.operations_entered).fetch_add(1, std::memory_order_relaxed) + 1;
  auto* slot = &to.operations[number % kOperations];
  // An operation that waits stays in the record while others of other groups come and go.
  for (int tries = 0; tries < kBusySlots && load(slot->number) != 0 && load(slot->state) < OperationState::completed;
       ++tries) {
    number = std::atomic_ref(to.operations_entered).fetch_add(1, std::memory_order_relaxed) + 1;
    slot = &to.operations[number % kOperations];
  }
  store(slot->number, std::uint64_t{0}, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
  slot->group = group.id;
  slot->axis = group.axis;
  slot->sequence = call.sequence;
  slot->entered = now();
  slot->started = slot->completed = 0;
  slot->elements = call.elements;
  slot->dimensions = static_cast<std::int32_t>(call.sizes.size());
  for (std::size_t i = 0; i < slot->sizes.size(); ++i) slot->sizes[i] = i < call.sizes.size() ? call.sizes[i] : 0;
  slot->peer = call.peer;
  slot->root = call.root;
  slot->is_message = call.is_message ? 1 : 0;
  copy_text(slot->op, call.op);
  copy_text(slot->dtype, call.dtype);
  store(slot->state, OperationState::entered);
  store(slot->number, number, std::memory_order_release);
  return {slot, number};
}

bool Entry::valid() const { return slot_ != nullptr && load(slot_->number) == number_; }

void Entry::started() {
  if (!valid()) return;
  store(slot_->started, now());
  store(slot_->state, OperationState::started, std::memory_order_release);
}

void Entry::completed() {
  if (!valid()) return;
  store(slot_->completed, now());
  store(slot_->state, OperationState::completed, std::memory_order_release);
}

void Entry::failed() {
  any_lost = true;
  if (valid()) store(slot_->state, OperationState::failed, std::memory_order_release);
}

/// The record is of the rank; a planned step of this process is none of its steps.
static bool is_planned() { return PlannedDevice::current() != nullptr; }

void set_step(std::int64_t step) {
  if (!is_planned()) store(record().step, step);
}
void set_block(int block) {
  if (!is_planned()) store(record().block, block);
}
int block() { return load(record().block); }
void watch_phases(std::function<void(Phase, bool)> watch) { phase_watch() = std::move(watch); }

void set_phase(Phase phase) {
  if (!is_planned()) store(record().phase, phase);
}

PhaseScope::PhaseScope(Phase phase, std::int64_t microbatch)
    : before_(load(record().phase)), microbatch_(load(record().microbatch)) {
  if (is_planned()) return;
  store(record().phase, phase);
  store(record().microbatch, static_cast<std::int32_t>(microbatch));
  if (phase_watch()) phase_watch()(phase, /*begins=*/true);
}

PhaseScope::~PhaseScope() {
  if (std::uncaught_exceptions() > 0 || is_planned()) return;
  if (phase_watch()) phase_watch()(load(record().phase), /*begins=*/false);
  store(record().phase, before_);
  store(record().microbatch, microbatch_);
}

void note_device_operations() { on_device = true; }

bool lost() { return any_lost; }

void note_signal(int number) {
  if (load(record().signal) == 0) store(record().signal, number);
}

void forget_signal() { store(record().signal, 0); }

void end() {
  auto& opened = files();
  if (opened.folder.empty()) return;
  auto& mine = record();
  mine.ended = now();
  store(mine.end, EndKind::normal, std::memory_order_release);
  if (shared_control() != nullptr) remove_if_all_ended(opened.folder, opened.local_size);
  current = &nowhere;
  opened.folder.clear();
}

void end_with_error(int exit_code, const std::string& text) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& mine = record();
  if (load(mine.end) != EndKind::none) return;
  mine.exit_code = exit_code;
  mine.ended = now();
  copy_text(mine.text, text);
  any_lost = lost() || (on_device && exit_code == static_cast<int>(ExitCode::communication));
  store(mine.end, lost() ? EndKind::lost : EndKind::error, std::memory_order_release);
  auto* shared = shared_control();
  // Its own message is all that there is to say, and the launcher ends the others without a word to them.
  if (!lost() && shared != nullptr) store(shared->dying, std::int32_t{1});
}

bool job_is_dying() {
  if (const auto* shared = shared_control(); shared != nullptr && load(shared->dying) != 0) return true;
  const auto ranks = read_ranks(files().folder);
  return std::any_of(ranks.begin(), ranks.end(), [](const RankView& rank) { return rank.died() || rank.failed(); });
}

}  // namespace trireme::comm::flight
