// How the ranks meet, in two agreements through the store: where each rank's segment is, and whether every rank has
// mapped those of the others, after which its file is closed. A rank that fails says so in the next agreement, which
// then ends the start on all ranks with its reason.
#include "core/comm/native/processes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/base/version.h"
#include "core/comm/flight/reader.h"
#include "core/comm/meeting.h"

namespace trireme::comm::native {
namespace {

constexpr const char* kFailed = "failed: ";  // begins the text of a rank that failed, and then the answer

/// What a rank tells the others first. The version is read before the rest, whose form depends on it.
struct Card {
  pid_t pid = 0;
  int segment = -1;  // its descriptor
  Token token{};
  const Token* in_process = nullptr;  // where the token is in its own memory

  [[nodiscard]] std::string text() const {
    return fmt::format("{}\n{} {} {} {} {}", TRIREME_VERSION, pid, segment, token[0], token[1],
                       reinterpret_cast<std::uintptr_t>(in_process));
  }
  static Card parse(const std::string& text) {
    Card card;
    std::string version;
    std::uintptr_t address = 0;
    std::istringstream in(text);
    std::getline(in, version);
    in >> card.pid >> card.segment >> card.token[0] >> card.token[1] >> address;
    card.in_process = reinterpret_cast<const Token*>(address);
    return card;
  }
};

/// @throws CommError on every rank when they run different versions.
std::vector<Card> parse_cards(const std::vector<std::string>& texts) {
  const auto version_of = [&](std::size_t rank) { return texts[rank].substr(0, texts[rank].find('\n')); };
  std::vector<Card> cards;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (version_of(rank) != version_of(0))
      throw CommError(fmt::format("rank {} runs Trireme {}, rank 0 runs {}; install the same version for all ranks",
                                  rank, version_of(rank), version_of(0)));
    cards.push_back(Card::parse(texts[rank]));
  }
  return cards;
}

/// What a rank says in an agreement: the text that `make` returns, or its error.
template <class Make>
std::string text_or_error(Make&& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    return std::string(kFailed) + error.what();
  }
}

/// Returns the texts of all ranks. @throws CommError on every rank when one failed.
std::vector<std::string> gather(c10d::Store& store, const LaunchInfo& info, const std::string& key,
                                const std::string& mine) {
  const auto answer = decide_by_store(store, info.rank, info.size, key, mine, [](const auto& said) {
    for (std::size_t rank = 0; rank < said.size(); ++rank)
      if (said[rank].starts_with(kFailed))
        return fmt::format("{}rank {}: {}", kFailed, rank, said[rank].substr(std::strlen(kFailed)));
    return fmt::format("{}", fmt::join(said, std::string(1, '\0')));
  });
  if (answer.starts_with(kFailed)) throw CommError(answer.substr(std::strlen(kFailed)));
  std::vector<std::string> all;
  std::istringstream in(answer);
  for (std::string text; std::getline(in, text, '\0');) all.push_back(text);
  return all;
}

/// Tests it on the other rank's token: a container or the kernel's settings may forbid it.
bool can_read_memory(const Card& of) {
  Token copy{};
  const iovec local{&copy, sizeof copy}, remote{const_cast<Token*>(of.in_process), sizeof copy};
  return process_vm_readv(of.pid, &local, 1, &remote, 1, 0) == sizeof copy && copy == of.token;
}

/// @throws CommError.
Process map_process(const Card& card, std::size_t rank, int size) {
  Process made;
  made.pid = card.pid;
  try {
    made.segment = Segment::map(card.pid, card.segment, card.token, size);
  } catch (const CommError& error) {
    throw CommError(
        fmt::format("cannot map the memory of rank {} on the same host ({}); if the ranks are in separate containers, "
                    "start them in one container, or by mpirun",
                    rank, error.what()));
  }
  made.descriptor = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, card.pid, 0)));
  made.start = flight::process_start(card.pid);
  made.reads_memory = can_read_memory(card);
  return made;
}

}  // namespace

bool Process::has_ended() const {
  if (descriptor) {
    pollfd ended{descriptor.get(), POLLIN, 0};
    return poll(&ended, 1, 0) > 0;
  }
  if (start == 0) return kill(pid, 0) != 0 && errno == ESRCH;  // it could not be read, or had ended before
  return flight::process_state(pid, start) == flight::ProcessState::gone;
}

Processes meet(const LaunchInfo& info, c10d::Store& store) {
  Processes made;
  made.rank = info.rank;
  made.others.resize(static_cast<std::size_t>(info.size));
#ifdef PR_SET_PTRACER
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // where the kernel lets only ancestors read a process's memory
#endif
  Token in_process{};
  const auto own_card = text_or_error([&] {
    made.own = Segment::create(info.size);
    in_process = made.own->token();
    return Card{getpid(), made.own->fd(), in_process, &in_process}.text();
  });
  const auto cards = parse_cards(gather(store, info, "cards/", own_card));
  const auto mapped = text_or_error([&] {
    for (std::size_t rank = 0; rank < cards.size(); ++rank)
      if (static_cast<int>(rank) != info.rank) made.others[rank] = map_process(cards[rank], rank, info.size);
    return std::string();
  });
  (void)gather(store, info, "mapped/", mapped);
  made.own->close_file();
  return made;
}

}  // namespace trireme::comm::native
