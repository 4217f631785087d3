// How the ranks connect, in agreements through the store: who is where; whether every rank has mapped the memory of the
// others on its host, after which its file is closed; with several hosts, the addresses of all, whether every rank has
// opened the pipes of its host, and whether all are connected. A rank that fails says so in the next agreement, which
// then ends the start on all ranks with its reason.
#include "core/comm/native/connections.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/comm/meeting.h"
#include "core/comm/native/sockets.h"
#include "core/comm/topology.h"

namespace trireme::comm::native {
namespace {

constexpr const char* kRefused = "refused: ";
constexpr const char* kFailed = "failed: ";  // begins the text of a rank that failed

/// What a rank tells the others first. The version is read before the rest, whose form depends on it.
struct Card {
  std::string host;
  std::string processes;  // its PID namespace
  pid_t pid = 0;
  int segment = -1;
  Token token{};
  const Token* in_process = nullptr;  // where the token is in its own memory

  [[nodiscard]] std::string text() const {
    return fmt::format("{}\n{}\n{}\n{} {} {} {} {}", TRIREME_VERSION, host, processes, pid, segment, token[0], token[1],
                       reinterpret_cast<std::uintptr_t>(in_process));
  }
  static Card parse(const std::string& text) {
    Card card;
    std::string version;
    std::uintptr_t address = 0;
    std::istringstream in(text);
    std::getline(in, version);
    std::getline(in, card.host);
    std::getline(in, card.processes);
    in >> card.pid >> card.segment >> card.token[0] >> card.token[1] >> address;
    card.in_process = reinterpret_cast<const Token*>(address);
    return card;
  }
  /// Whether the two may share memory. Containers of one machine may have one host name, and processes of their own.
  [[nodiscard]] bool beside(const Card& other) const { return host == other.host && processes == other.processes; }
};

std::string process_namespace() {
  std::array<char, 64> name{};
  const auto length = readlink("/proc/self/ns/pid", name.data(), name.size());
  return {name.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

std::string version_of(const std::string& card) { return card.substr(0, card.find('\n')); }

/// What a rank says in an agreement: the text that `make` returns, or its error.
template <class Make>
std::string text_or_error(Make&& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    return std::string(kFailed) + error.what();
  }
}

/// Of the first rank that failed; "" when none has.
std::string failure_of(const std::vector<std::string>& said) {
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    if (said[rank].starts_with(kFailed))
      return fmt::format("rank {}: {}", rank, said[rank].substr(std::strlen(kFailed)));
  return "";
}

/// Every rank gets the texts of all ranks. `check` returns what is wrong with them, if anything, and runs on rank 0.
/// A rank's error is wrong in any case.
/// @throws CommError on every rank.
template <class Check>
std::vector<std::string> gather(c10d::Store& store, const LaunchInfo& info, const std::string& key,
                                const std::string& mine, Check&& check) {
  const auto answer = decide_by_store(store, info.rank, info.size, key, mine, [&](const auto& said) {
    std::string wrong = failure_of(said);
    if (wrong.empty()) wrong = check(said);
    return wrong.empty() ? fmt::format("{}", fmt::join(said, std::string(1, '\0'))) : kRefused + wrong;
  });
  if (answer.starts_with(kRefused)) throw CommError(answer.substr(std::strlen(kRefused)));
  std::vector<std::string> all;
  for (std::size_t at = 0; at <= answer.size();) {
    const auto end = std::min(answer.find('\0', at), answer.size());
    all.push_back(answer.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

std::vector<Card> gather_cards(c10d::Store& store, const LaunchInfo& info, const std::string& mine) {
  const auto texts = gather(store, info, "cards/", mine, [](const auto& said) -> std::string {
    for (std::size_t rank = 1; rank < said.size(); ++rank)
      if (version_of(said[rank]) != version_of(said[0]))
        return fmt::format("rank {} runs Trireme {}, rank 0 runs {}; install the same version for all ranks", rank,
                           version_of(said[rank]), version_of(said[0]));
    return "";
  });
  std::vector<Card> cards;
  for (const auto& text : texts) cards.push_back(Card::parse(text));
  return cards;
}

std::string accept_all(const std::vector<std::string>&) { return ""; }

/// Calls body, and ends the start on every rank when it failed on any.
template <class Body>
void succeed_together(c10d::Store& store, const LaunchInfo& info, const std::string& key, Body&& body) {
  const auto mine = text_or_error([&] {
    body();
    return std::string();
  });
  (void)gather(store, info, key, mine, accept_all);
}

/// Tests it on the other rank's token: a container or the kernel's settings may forbid it.
bool can_read_memory(const Card& of) {
  Token copy{};
  const iovec local{&copy, sizeof copy}, remote{const_cast<Token*>(of.in_process), sizeof copy};
  return process_vm_readv(of.pid, &local, 1, &remote, 1, 0) == sizeof copy && copy == of.token;
}

/// @throws CommError.
Connection connect_locally(const Card& card, int other_rank, int size) {
  Connection made;
  made.pid = card.pid;
  try {
    made.segment = Segment::map(card.pid, card.segment, card.token, size);
  } catch (const CommError& error) {
    throw CommError(
        fmt::format("cannot map the memory of rank {} on the same host ({}); if the ranks are in separate containers, "
                    "give each container another TRIREME_HOST_IDENTITY, and they communicate over TCP",
                    other_rank, error.what()));
  }
  made.process = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, card.pid, 0)));
  made.reads_memory = can_read_memory(card);
  return made;
}

/// Opens another rank's pipe. This handle can read as well: if the other rank has died, there is still a reader, and
/// writing raises no SIGPIPE. @throws CommError.
FileDescriptor open_wake_pipe(pid_t pid, const std::string& fd) {
  const auto path = fmt::format("/proc/{}/fd/{}", pid, fd);
  FileDescriptor wake(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!wake) throw CommError(no_descriptor(path.c_str(), errno));
  return wake;
}

/// Connects to the ranks of other hosts, and makes the pipe that the ranks of this one wake this rank by.
void connect_hosts(Connections& made, const std::vector<Card>& cards, c10d::Store& store, const LaunchInfo& info,
                   std::chrono::milliseconds timeout) {
  const auto& own = cards[static_cast<std::size_t>(made.rank)];
  std::optional<Listener> listener;
  const auto mine = text_or_error([&] {
    std::array<int, 2> ends{-1, -1};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw CommError(no_descriptor("cannot create a pipe", errno));
    made.wake_reads = FileDescriptor(ends[0]);
    made.wake_writes = FileDescriptor(ends[1]);
    listener.emplace(made.size, own.host == cards[0].host);
    return fmt::format("{} {}", ends[1], listener->address());
  });
  const auto texts = gather(store, info, "addresses/", mine, accept_all);
  std::vector<RemoteRank> remote;
  succeed_together(store, info, "pipes/", [&] {
    for (int rank = 0; rank < made.size; ++rank) {
      const auto& card = cards[static_cast<std::size_t>(rank)];
      const auto& text = texts[static_cast<std::size_t>(rank)];
      const auto space = text.find(' ');
      if (!card.beside(own))
        remote.push_back({rank, text.substr(space + 1), card.host, card.token});
      else if (rank != made.rank)
        made.others[static_cast<std::size_t>(rank)].wake = open_wake_pipe(card.pid, text.substr(0, space));
    }
  });
  succeed_together(store, info, "connected/", [&] {
    for (auto& [rank, socket] : connect_remote_ranks(*listener, made.rank, own.token, remote, timeout))
      made.others[static_cast<std::size_t>(rank)].socket = std::move(socket);
  });
}

}  // namespace

bool Connection::has_ended() const {
  if (process) {
    pollfd ended{process.get(), POLLIN, 0};
    return poll(&ended, 1, 0) > 0;
  }
  // "PID (name) STATE ...": a process whose parent has not asked for its exit code is a zombie.
  std::string text;
  if (!std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), text)) return kill(pid, 0) != 0 && errno == ESRCH;
  const auto name_end = text.rfind(") ");
  return name_end != std::string::npos && text.substr(name_end + 2, 1) == "Z";
}

Connections connect_ranks(const LaunchInfo& info, c10d::Store& store, std::chrono::milliseconds timeout) {
  Connections made;
  made.rank = info.rank;
  made.size = info.size;
  made.others.resize(static_cast<std::size_t>(info.size));
#ifdef PR_SET_PTRACER
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where the kernel lets only ancestors read a process's memory
#endif
  Token in_process{};
  const auto cards = gather_cards(store, info, text_or_error([&] {
                                    made.own = Segment::create(info.size);
                                    in_process = made.own->token();
                                    return Card{.host = host_identity(),
                                                .processes = process_namespace(),
                                                .pid = getpid(),
                                                .segment = made.own->fd(),
                                                .token = in_process,
                                                .in_process = &in_process}
                                        .text();
                                  }));
  const auto& own = cards[static_cast<std::size_t>(info.rank)];
  for (std::size_t a = 0; a < cards.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) (cards[a].beside(cards[b]) ? made.any_shared : made.any_tcp) = true;
  succeed_together(store, info, "mapped/", [&] {
    for (int rank = 0; rank < info.size; ++rank) {
      const auto& card = cards[static_cast<std::size_t>(rank)];
      if (rank == info.rank || !card.beside(own)) continue;
      ++made.on_this_host;
      made.others[static_cast<std::size_t>(rank)] = connect_locally(card, rank, info.size);
    }
  });
  made.own->close_file();
  if (made.any_tcp) connect_hosts(made, cards, store, info, timeout);
  return made;
}

}  // namespace trireme::comm::native
