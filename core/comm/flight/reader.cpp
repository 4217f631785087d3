#include "core/comm/flight/reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "core/comm/flight/mapped_file.h"

namespace trireme::comm::flight {
namespace {

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

}  // namespace

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
    const auto file = MappedFile::open(entry->path().string(), sizeof(RankRecord), false);
    if (!file) continue;
    RankView view{};
    copy(*static_cast<const RankRecord*>(file.memory()), view.record);
    if (view.record.magic != kMagic || view.record.version != kVersion) continue;
    if (view.record.pid_namespace == pid_namespace())
      view.process = process_state(view.record.pid, view.record.process_start);
    // It may have written its end between the copy and its exit.
    if (view.process == ProcessState::gone) copy(*static_cast<const RankRecord*>(file.memory()), view.record);
    ranks.push_back(view);
  }
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.record.rank < b.record.rank; });
  return ranks;
}

}  // namespace trireme::comm::flight
