#include "apps/front/frames.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_parse.h"
#include "core/base/version.h"

namespace trireme::apps {
namespace {

// A zero byte does not occur in what a login script prints.
constexpr std::string_view kGreeting{"\0trireme-agent ", 15};

}  // namespace

bool write_frame(int descriptor, FrameKind kind, int rank, int value, std::string_view text) {
  auto bytes = fmt::format("{} {} {} {}\n", static_cast<char>(kind), rank, value, text.size());
  bytes += text;
  for (std::size_t done = 0; done < bytes.size();) {
    const auto length = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) {  // who started this process may have made the descriptor non-blocking
      pollfd ready{descriptor, POLLOUT, 0};
      (void)poll(&ready, 1, -1);
      continue;
    }
    if (length < 0) return false;
    done += static_cast<std::size_t>(length);
  }
  return true;
}

bool FrameReader::read_from(int descriptor) {
  std::array<char, 65536> part{};
  const auto length = read(descriptor, part.data(), part.size());
  if (length < 0) return errno == EAGAIN || errno == EINTR;
  bytes_.append(part.data(), static_cast<std::size_t>(length));
  return length > 0;
}

std::optional<std::string> FrameReader::greeting() {
  const auto begin = bytes_.find(kGreeting);
  if (begin == std::string::npos) return std::nullopt;
  const auto end = bytes_.find('\n', begin);
  if (end == std::string::npos) return std::nullopt;
  const auto from = begin + kGreeting.size();
  auto version = bytes_.substr(from, end - from);
  bytes_.erase(0, end + 1);
  return version;
}

std::optional<Frame> FrameReader::next() {
  constexpr std::size_t kLongestHeader = 64;
  const auto end = bytes_.find('\n');
  if (end == std::string::npos && bytes_.size() < kLongestHeader) return std::nullopt;
  Frame frame;
  char kind = 0;
  unsigned long length = 0;
  if (end == std::string::npos ||
      std::sscanf(bytes_.c_str(), "%c %d %d %lu\n", &kind, &frame.rank, &frame.value, &length) != 4)
    throw CommError(
        fmt::format("the connection carries something else than the agent's messages: \"{}\"", bytes_.substr(0, 40)));
  if (bytes_.size() < end + 1 + length) return std::nullopt;
  frame.kind = static_cast<FrameKind>(kind);
  frame.text = bytes_.substr(end + 1, length);
  bytes_.erase(0, end + 1 + length);
  return frame;
}

std::string greeting_line() { return fmt::format("{}{}\n", kGreeting, TRIREME_VERSION); }

std::string job_text(const RankJob& job, const std::string& folder) {
  const nlohmann::json all{{"folder", folder},
                           {"program", job.program},
                           {"environment", job.environment},
                           {"size", job.size},
                           {"first", job.first},
                           {"count", job.count},
                           {"host", job.host},
                           {"master_addr", job.store.host},
                           {"master_port", job.store.port}};
  try {
    return all.dump();
  } catch (const nlohmann::json::exception&) {
    throw ConfigError(
        "an argument, the working directory or an environment variable is not UTF-8 text, which ranks on other hosts "
        "need");
  }
}

FolderAndJob parse_job(const std::string& text) {
  const auto all = parse_json(text);
  return {all.at("folder"),
          {.program = all.at("program"),
           .environment = all.at("environment"),
           .size = all.at("size"),
           .first = all.at("first"),
           .count = all.at("count"),
           .host = all.at("host"),
           .store = {.host = all.at("master_addr"), .port = all.at("master_port")}}};
}

}  // namespace trireme::apps
