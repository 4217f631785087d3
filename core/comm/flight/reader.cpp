#include "core/comm/flight/reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/mapped_bytes.h"

namespace trireme::comm::flight {
namespace {

struct Stat {
  char state = 0;  ///< 0: no such process
  std::int64_t start = 0;
};

Stat stat_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // does not throw where the process ends meanwhile
  // The program's name is in parentheses, and may contain any.
  const char* at = std::strrchr(text.data(), ')');
  if (at == nullptr || at[1] == '\0') return {};
  Stat found{.state = at[2]};
  constexpr int kFieldsToStart = 20;  // from the state, field 3, to the start, field 22
  for (int field = 0; field < kFieldsToStart && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  if (at != nullptr) found.start = std::strtoll(at, nullptr, 10);
  return found;
}

bool incomplete(const OperationRecord& operation) {
  return operation.number != 0 && operation.state != OperationState::completed;
}

/// Copies a record that its rank may be writing to. Entries that change meanwhile are left out.
void copy(const RankRecord& from, RankRecord& to) {
  std::memcpy(&to, &from, sizeof to);
  std::atomic_thread_fence(std::memory_order_acquire);
  for (std::size_t i = 0; i < kOperations; ++i) {
    auto& number = const_cast<std::uint64_t&>(from.operations[i].number);
    if (std::atomic_ref(number).load(std::memory_order_acquire) != to.operations[i].number) to.operations[i].number = 0;
  }
  for (auto* text : {to.host.data() + to.host.size() - 1, to.text.data() + to.text.size() - 1}) *text = '\0';
}

/// Maps the file of a record; null when it is none.
Mapping map_record(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat found {};
  if (!file || fstat(file.get(), &found) != 0 || found.st_size != sizeof(RankRecord)) return {};
  return map_memory(file.get(), sizeof(RankRecord), PROT_READ, MAP_SHARED);
}

}  // namespace

std::int64_t process_start(int pid) { return stat_of(pid).start; }

ProcessState process_state(int pid, std::int64_t start) {
  const auto found = stat_of(pid);
  if (found.state == 0 || found.start != start || found.state == 'Z' || found.state == 'X') return ProcessState::gone;
  return found.state == 'T' || found.state == 't' ? ProcessState::stopped : ProcessState::running;
}

std::uint64_t pid_namespace() {
  struct stat file {};
  return stat("/proc/self/ns/pid", &file) == 0 ? static_cast<std::uint64_t>(file.st_ino) : 0;
}

std::vector<OperationRecord> RankView::operations() const {
  std::vector<OperationRecord> all;
  for (const auto& operation : record.operations)
    if (operation.number != 0) all.push_back(operation);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return all;
}

const OperationRecord* RankView::current() const {
  const OperationRecord* found = nullptr;
  for (const auto& operation : record.operations) {
    if (!incomplete(operation)) continue;
    const bool failed = operation.state == OperationState::failed;
    const bool other_failed = found != nullptr && found->state == OperationState::failed;
    if (found == nullptr || (failed && !other_failed) || (failed == other_failed && operation.number < found->number))
      found = &operation;
  }
  return found;
}

const OperationRecord* RankView::last_completed() const {
  const OperationRecord* found = nullptr;
  for (const auto& operation : record.operations)
    if (operation.number != 0 && operation.state == OperationState::completed &&
        (found == nullptr || operation.completed > found->completed))
      found = &operation;
  return found;
}

const OperationRecord* RankView::find(std::uint64_t group, std::uint64_t sequence) const {
  for (const auto& operation : record.operations)
    if (operation.number != 0 && operation.is_message == 0 && operation.group == group &&
        operation.sequence == sequence)
      return &operation;
  return nullptr;
}

const GroupRecord* RankView::find_group(std::uint64_t group) const {
  for (const auto& joined : record.groups)
    if (joined.id == group) return &joined;
  return nullptr;
}

std::vector<RankView> read_ranks(const std::string& folder) {
  std::vector<RankView> ranks;
  std::error_code none;
  for (std::filesystem::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    if (!entry->path().filename().string().starts_with(kRankFile)) continue;
    const auto mapped = map_record(entry->path().string());
    if (!mapped) continue;
    const auto& written = *static_cast<const RankRecord*>(mapped.get());
    RankView view{};
    copy(written, view.record);
    if (view.record.magic != kMagic || view.record.version != kVersion) continue;
    if (view.record.pid_namespace == pid_namespace())
      view.process = process_state(view.record.pid, view.record.process_start);
    // It may have written its end between the copy and its exit.
    if (view.process == ProcessState::gone) copy(written, view.record);
    ranks.push_back(view);
  }
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.record.rank < b.record.rank; });
  return ranks;
}

}  // namespace trireme::comm::flight
