#include "core/comm/flight/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <span>
#include <string_view>

#include "core/base/text.h"

namespace trireme::comm::flight {
namespace {

const char* name_of(Phase phase) {
  static constexpr std::array kNames{"",       "start",  "data",     "forward", "backward",
                                     "reduce", "update", "evaluate", "save",    "finish"};
  const auto index = static_cast<std::size_t>(phase);  // of a file that another process wrote
  return index < kNames.size() ? kNames[index] : "";
}

/// "step 39, microbatch 0, forward, block 1": where the rank is in its step; "-" before the first one.
std::string where(const RankRecord& rank) {
  auto text = rank.step > 0 ? fmt::format("step {}", rank.step) : std::string();
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (rank.microbatch >= 0) add(fmt::format("microbatch {}", rank.microbatch));
  if (const std::string phase = name_of(rank.phase); !phase.empty()) add(phase);
  if (rank.block >= 0) add(fmt::format("block {}", rank.block));
  return text.empty() ? "-" : text;
}

/// "all_reduce dp #812 [768] float32"; "recv pp from 1 [8, 16] float32", with the peer's rank in the group.
std::string text_of(const OperationRecord& operation) {
  auto text = fmt::format("{} {}", operation.op.data(), operation.axis.data());
  if (operation.is_message == 0)
    text += fmt::format(" #{}", operation.sequence);
  else
    text += fmt::format(" {} {}", std::string_view(operation.op.data()) == "send" ? "to" : "from",
                        operation.peer < 0 ? "any" : std::to_string(operation.peer));
  if (operation.root >= 0) text += fmt::format(" root {}", operation.root);
  if (operation.dtype[0] == '\0') return text;
  const auto all = static_cast<std::size_t>(std::max(operation.dimensions, 0));
  const auto shown = std::span(operation.sizes).first(std::min(all, operation.sizes.size()));
  return text +
         fmt::format(" [{}{}] {}", fmt::join(shown, ", "), all > shown.size() ? ", ..." : "", operation.dtype.data());
}

/// "-" for null.
std::string text_of(const OperationRecord* operation) { return operation == nullptr ? "-" : text_of(*operation); }

/// "dead", "stopped", "running", ...
std::string state_of(const RankView& rank) {
  if (rank.record.end == EndKind::normal) return "ended";
  if (rank.record.end == EndKind::error) return "error";
  if (rank.died()) return "dead";
  if (rank.process == ProcessState::stopped) return "stopped";
  return rank.record.end == EndKind::lost ? "gave up" : "running";  // also if it was ended because of another one
}

constexpr std::size_t kMostRows = 32;  // a table for people; the ranks that matter come first
constexpr std::size_t kMostFindings = 16;

bool differs(const OperationRecord& one, const OperationRecord& other) {
  static const std::set<std::string_view> of_one_size{"all_reduce", "broadcast", "reduce"};
  return one.op != other.op || one.dtype != other.dtype || one.root != other.root ||
         (of_one_size.contains(one.op.data()) && one.elements != other.elements);
}

class Reporter {
 public:
  Reporter(const std::vector<RankView>& ranks, const ReportOptions& options) : ranks_(ranks), options_(options) {}
  std::string text() const { return headline() + "\n" + table() + findings(); }

 private:
  using Row = std::vector<std::string>;

  const RankView* of(int rank) const {
    for (const auto& view : ranks_)
      if (view.record.rank == rank) return &view;
    return nullptr;
  }
  std::string end_of(const RankView& rank) const {
    const auto known = options_.ended.find(rank.record.rank);
    return known != options_.ended.end() ? known->second : "has died: its process is gone, without a message";
  }
  std::string headline() const {
    if (!options_.ended.empty())
      return fmt::format("rank {} {}", options_.ended.begin()->first, options_.ended.begin()->second);
    if (const auto* died = first_died()) return fmt::format("rank {} {}", died->record.rank, end_of(*died));
    const auto* lost = first_lost();
    if (lost == nullptr) return "the ranks do not go on";
    return fmt::format("{}{}", lost->record.rank > 0 ? fmt::format("rank {}: ", lost->record.rank) : "",
                       lost->record.text.data());
  }
  bool several_hosts() const {
    return !options_.all_on_this_host || std::any_of(ranks_.begin(), ranks_.end(), [this](const RankView& rank) {
      return rank.record.host != ranks_.front().record.host;
    });
  }
  Row row(int rank) const {
    const auto* view = of(rank);
    if (view == nullptr) {
      const auto* state = options_.ended.contains(rank) ? "dead"
                          : options_.all_on_this_host   ? "not started"
                                                        : "not reachable";
      return {std::to_string(rank), "?", state, "-", "-", "-"};
    }
    return {std::to_string(rank),     view->record.host.data(),        state_of(*view),
            text_of(view->current()), text_of(view->last_completed()), where(view->record)};
  }
  bool any_died() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const RankView& rank) { return rank.died(); });
  }

  /// The rank that has died first, as far as its operations show: Open MPI ends a rank whose connection breaks.
  const RankView* first_died() const {
    const RankView* first = nullptr;
    std::int64_t least = 0;
    for (const auto& rank : ranks_) {
      if (!rank.died()) continue;
      std::int64_t last = 0;
      for (const auto& operation : rank.record.operations) last = std::max(last, operation.entered);
      if (first != nullptr && last >= least) continue;
      first = &rank;
      least = last;
    }
    return first;
  }

  /// The rank that has failed first. Of several that did at about the same time, the one that is least far: the others
  /// may have gone on with what it waits for.
  const RankView* first_lost() const {
    constexpr std::int64_t kSimultaneous = 500'000'000;  // nanoseconds
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    for (const auto& rank : ranks_)
      if (rank.record.end == EndKind::lost) begin = std::min(begin, rank.record.ended);
    const RankView* first = nullptr;
    std::uint64_t least = 0;
    for (const auto& rank : ranks_) {
      if (rank.record.end != EndKind::lost || rank.record.ended - begin > kSimultaneous) continue;
      const auto* operation = rank.current();
      const auto sequence = operation != nullptr && operation->is_message == 0
                                ? operation->sequence
                                : std::numeric_limits<std::uint64_t>::max();
      if (first != nullptr && sequence >= least) continue;
      first = &rank;
      least = sequence;
    }
    return first;
  }

  /// The first operation of a group that another rank called as another one; it may have come to its end all the same.
  std::string first_difference(const RankView& own, std::uint64_t group) const {
    for (const auto& operation : own.operations()) {
      if (operation.group != group || operation.is_message != 0) continue;
      for (const auto& rank : ranks_)
        if (const auto* same = rank.find(group, operation.sequence); same != nullptr && differs(*same, operation))
          return fmt::format("rank {} called {} where rank {} called {}", rank.record.rank, text_of(*same),
                             own.record.rank, text_of(operation));
    }
    return "";
  }

  /// All ranks, or the ones that are not simply running first when there are many, in their order.
  std::vector<int> shown_ranks() const {
    std::vector<int> odd, plain;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const auto* view = of(rank);
      (view == nullptr || state_of(*view) != "running" ? odd : plain).push_back(rank);
    }
    if (odd.size() > kMostRows) odd.resize(kMostRows);
    const auto room = std::min(plain.size(), kMostRows - odd.size());
    odd.insert(odd.end(), plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(room));
    std::sort(odd.begin(), odd.end());
    return odd;
  }

  std::string table() const {
    std::vector<Row> rows{{"rank", "host", "state", "in operation", "last completed", "where"}};
    const auto shown = shown_ranks();
    for (const int rank : shown) rows.push_back(row(rank));
    if (!several_hosts())
      for (auto& each : rows) each.erase(each.begin() + 1);
    for (auto& each : rows) each.insert(each.begin(), "");  // indents the table
    auto out = text::columns(rows, std::vector<bool>(rows[0].size())) + "\n";
    if (const auto left = static_cast<std::size_t>(options_.world_size) - shown.size(); left > 0)
      out += fmt::format("  and {} more ranks\n", left);
    return out;
  }

  /// What a rank does that has not entered an operation.
  std::string instead(const RankView& rank) const {
    if (rank.died()) return "is dead";
    if (rank.process == ProcessState::stopped) return "is stopped (SIGSTOP, or a debugger)";
    if (rank.record.end == EndKind::normal) return "has ended normally";
    if (rank.failed() && rank.record.end == EndKind::error) return fmt::format("failed: {}", rank.record.text.data());
    if (const auto* other = rank.current()) return fmt::format("is in {}", text_of(*other));
    return fmt::format("is in no operation ({})", where(rank.record));
  }

  /// Whether a dead rank has a part in what this rank waits in.
  bool waits_for_dead(const RankView& own) const {
    const auto* operation = own.current();
    if (operation == nullptr) return false;
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const RankView& rank) {
      const auto* joined = rank.find_group(operation->group);
      return rank.died() && joined != nullptr &&
             (operation->is_message == 0 || operation->peer < 0 || joined->rank == operation->peer);
    });
  }

  /// The rank whose operation shows best what is wrong; null: none. After a death, only one that waits for a dead rank:
  /// the others wait for healthy ones.
  const RankView* which_waits() const {
    const bool death = any_died();
    const auto shows = [&](const RankView& rank) {
      return !rank.died() && rank.current() != nullptr && (!death || waits_for_dead(rank));
    };
    if (const auto* lost = first_lost(); lost != nullptr && shows(*lost)) return lost;
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), shows);
    return found == ranks_.end() ? nullptr : &*found;
  }

  /// Lines on the members of a rank's operation that are missing, or called another one. After a death, those that are
  /// not dead or stopped are left out: they may be on their way.
  void compare(const RankView& own, const OperationRecord& operation, std::vector<std::string>& out) const {
    int members = 0;
    const bool death = any_died();
    if (auto other = first_difference(own, operation.group); !other.empty()) out.push_back(std::move(other));
    for (const auto& rank : ranks_) {
      const auto* joined = rank.find_group(operation.group);
      if (joined == nullptr) continue;
      ++members;
      if (&rank == &own || (death && !rank.died() && rank.process != ProcessState::stopped)) continue;
      if (operation.is_message != 0) {
        if (joined->rank == operation.peer)
          out.push_back(fmt::format("rank {} waits in {}: rank {} {}", own.record.rank, text_of(operation),
                                    rank.record.rank, instead(rank)));
        continue;
      }
      const auto* same = rank.find(operation.group, operation.sequence);
      if (same == nullptr) {
        out.push_back(
            fmt::format("rank {} has not entered {}: it {}", rank.record.rank, text_of(operation), instead(rank)));
        continue;
      }
      const bool completed = same->state == OperationState::completed;
      if (rank.died() || (!completed && instead(rank).starts_with("is stopped")))
        out.push_back(fmt::format("rank {} has {} {}, and {}", rank.record.rank, completed ? "completed" : "entered",
                                  text_of(*same), instead(rank)));
    }
    if (const auto* joined = own.find_group(operation.group); joined != nullptr && members < joined->size)
      out.push_back(fmt::format("{} of the {} ranks of group {} have not joined it, or are not reachable",
                                joined->size - members, joined->size, operation.axis.data()));
    if (out.empty() && operation.is_message == 0)
      out.push_back(
          fmt::format("all ranks of the group have entered {} alike; their messages did not arrive, or came late",
                      text_of(operation)));
  }

  std::string findings() const {
    std::vector<std::string> lines;
    if (const auto* own = which_waits()) compare(*own, *own->current(), lines);
    for (const auto& rank : ranks_) {
      const auto begin = fmt::format("rank {} ", rank.record.rank);
      const auto is_named = std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
        return line.starts_with(begin) || line.find(": " + begin) != std::string::npos;
      });
      if (rank.process == ProcessState::stopped && !is_named) lines.push_back(begin + instead(rank));
    }
    if (lines.size() > kMostFindings) {
      const auto more = lines.size() - kMostFindings;
      lines.resize(kMostFindings);
      lines.push_back(fmt::format("and {} more", more));
    }
    std::string out;
    for (const auto& line : lines) out += "  " + line + "\n";
    return out;
  }

  const std::vector<RankView>& ranks_;
  const ReportOptions& options_;
};

}  // namespace

bool is_failure(const std::vector<RankView>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const RankView& rank) { return rank.died() || rank.record.end == EndKind::lost; });
}

std::string report(const std::vector<RankView>& ranks, const ReportOptions& options) {
  return Reporter(ranks, options).text();
}

}  // namespace trireme::comm::flight
