// How the ranks connect, in three agreements through the store: who is where; with several hosts, the addresses of all;
// and whether every rank has reached the others, after which the files of the shared memory are closed.
#include "core/comm/native/connections.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

/// What a rank tells the others first. The version is read before the rest, whose form depends on it.
struct Card {
  std::string host;
  pid_t pid = 0;
  int segment = -1;
  Token token{};
  const Token* in_process = nullptr;  // where the token is in its own memory

  [[nodiscard]] std::string text() const {
    return fmt::format("{}\n{}\n{} {} {} {} {}", TRIREME_VERSION, host, pid, segment, token[0], token[1],
                       reinterpret_cast<std::uintptr_t>(in_process));
  }
  static Card parse(const std::string& text) {
    Card card;
    std::string version;
    std::uintptr_t address = 0;
    std::istringstream in(text);
    std::getline(in, version);
    std::getline(in, card.host);
    in >> card.pid >> card.segment >> card.token[0] >> card.token[1] >> address;
    card.in_process = reinterpret_cast<const Token*>(address);
    return card;
  }
};

std::string version_of(const std::string& card) { return card.substr(0, card.find('\n')); }

/// Every rank gets the texts of all ranks. `check` returns what is wrong with them, if anything, and runs on rank 0.
/// @throws CommError on every rank.
template <class Check>
std::vector<std::string> gather(c10d::Store& store, const LaunchInfo& info, const std::string& key,
                                const std::string& mine, Check&& check) {
  const auto answer = decide_by_store(store, info.rank, info.size, key, mine, [&](const auto& said) {
    const std::string wrong = check(said);
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

std::vector<Card> gather_cards(c10d::Store& store, const LaunchInfo& info, const Card& mine) {
  const auto texts = gather(store, info, "cards/", mine.text(), [](const auto& said) -> std::string {
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

/// Ends the start on every rank when it failed on any.
void agree_on_success(c10d::Store& store, const LaunchInfo& info, const std::string& key, const std::string& error) {
  (void)gather(store, info, key, error, [](const auto& said) {
    for (std::size_t rank = 0; rank < said.size(); ++rank)
      if (!said[rank].empty()) return fmt::format("rank {}: {}", rank, said[rank]);
    return std::string();
  });
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

/// Connects to the ranks of other hosts, and makes the pipe that the ranks of this one wake this rank by.
void connect_hosts(Connections& made, const std::vector<Card>& cards, c10d::Store& store, const LaunchInfo& info,
                   std::chrono::milliseconds timeout) {
  const auto here = [&](int rank) {
    return cards[static_cast<std::size_t>(rank)].host == cards[static_cast<std::size_t>(made.rank)].host;
  };
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw CommError(fmt::format("cannot create a pipe: {}", std::strerror(errno)));
  made.wake_reads = FileDescriptor(ends[0]);
  made.wake_writes = FileDescriptor(ends[1]);
  const Listener listener(made.size, here(0));
  const auto texts = gather(store, info, "addresses/", fmt::format("{} {}", ends[1], listener.address()),
                            [](const auto&) { return std::string(); });
  std::vector<RemoteRank> remote;
  for (int rank = 0; rank < made.size; ++rank) {
    const auto& card = cards[static_cast<std::size_t>(rank)];
    const auto& text = texts[static_cast<std::size_t>(rank)];
    const auto space = text.find(' ');
    if (!here(rank)) {
      remote.push_back({rank, text.substr(space + 1), card.host, card.token});
    } else if (rank != made.rank) {
      const auto path = fmt::format("/proc/{}/fd/{}", card.pid, text.substr(0, space));
      auto& wake = made.others[static_cast<std::size_t>(rank)].wake;
      wake = FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
      if (!wake) throw CommError(fmt::format("{}: {}", path, std::strerror(errno)));
    }
  }
  const auto& own_token = cards[static_cast<std::size_t>(made.rank)].token;
  for (auto& [rank, socket] : connect_remote_ranks(listener, made.rank, own_token, remote, timeout))
    made.others[static_cast<std::size_t>(rank)].socket = std::move(socket);
}

}  // namespace

Connections connect_ranks(const LaunchInfo& info, c10d::Store& store, std::chrono::milliseconds timeout) {
  Connections made;
  made.rank = info.rank;
  made.size = info.size;
  made.others.resize(static_cast<std::size_t>(info.size));
  made.own = Segment::create(info.size);
#ifdef PR_SET_PTRACER
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where the kernel lets only ancestors read a process's memory
#endif
  const Token in_process = made.own->token();
  const auto cards = gather_cards(store, info,
                                  {.host = host_identity(),
                                   .pid = getpid(),
                                   .segment = made.own->fd(),
                                   .token = in_process,
                                   .in_process = &in_process});
  const auto& host = cards[static_cast<std::size_t>(info.rank)].host;
  for (std::size_t a = 0; a < cards.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) (cards[a].host == cards[b].host ? made.any_shared : made.any_tcp) = true;
  std::string error;
  for (int rank = 0; rank < info.size && error.empty(); ++rank) {
    const auto& card = cards[static_cast<std::size_t>(rank)];
    if (rank == info.rank || card.host != host) continue;
    ++made.on_this_host;
    try {
      made.others[static_cast<std::size_t>(rank)] = connect_locally(card, rank, info.size);
    } catch (const CommError& caught) {
      error = caught.what();
    }
  }
  agree_on_success(store, info, "mapped/", error);
  made.own->close_file();
  if (!made.any_tcp) return made;
  try {
    connect_hosts(made, cards, store, info, timeout);
  } catch (const CommError& caught) {
    error = caught.what();
  }
  agree_on_success(store, info, "connected/", error);
  return made;
}

}  // namespace trireme::comm::native
