#include "apps/front/hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

constexpr int kMostSlots = 4096;

/// @throws ConfigError that begins with `where`
Host parse_host(const std::string& text, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format("{}: {}; write HOST:SLOTS, such as node1:4", where, what));
  };
  Host host{text, 1};
  // The colons of an IPv6 address stand within brackets.
  const auto bracket = text.rfind(']');
  const auto colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    host.name = text.substr(0, colon);
    const auto* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, host.slots);
    if (error != std::errc() || rest != end || host.slots < 1 || host.slots > kMostSlots)
      refuse(fmt::format("\"{}\": the number of slots must be from 1 to {}", text, kMostSlots));
  }
  if (host.name.starts_with('[') && host.name.ends_with(']')) host.name = host.name.substr(1, host.name.size() - 2);
  if (host.name.empty()) refuse(text.empty() ? "a host is missing" : fmt::format("\"{}\" has no host", text));
  // A name that starts with a dash would be an option of the remote shell.
  if (host.name.starts_with('-') || host.name.find_first_of(" \t/='\"") != std::string::npos)
    refuse(fmt::format("\"{}\" is not the name of a host", host.name));
  return host;
}

void add(std::vector<Host>& hosts, const Host& host) {
  const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const Host& each) { return each.name == host.name; });
  if (known == hosts.end())
    hosts.push_back(host);
  else
    known->slots += host.slots;
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
Addresses addresses_of(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return {found, [](addrinfo* list) {
            if (list != nullptr) freeaddrinfo(list);
          }};
}

/// The address as text; "" for families other than IPv4 and IPv6.
std::string text_of(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  std::array<char, NI_MAXHOST> text{};
  const auto length =
      static_cast<socklen_t>(address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0 ? text.data() : "";
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> own;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return own;
  for (const auto* each = list; each != nullptr; each = each->ifa_next)
    if (const auto text = text_of(each->ifa_addr); !text.empty()) own.push_back(text);
  freeifaddrs(list);
  return own;
}

bool is_this_machine(const std::string& name) {
  const auto host = address_name(name);
  const auto own = host_name();
  if (host == "localhost" || host == own || host == own.substr(0, own.find('.'))) return true;
  const auto mine = own_addresses();
  const auto addresses = addresses_of(host);
  for (const auto* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const auto text = text_of(each->ai_addr);
    if (text.starts_with("127.") || std::find(mine.begin(), mine.end(), text) != mine.end()) return true;
  }
  return false;
}

/// An address of this machine that `other` can reach: the one from which packets to it leave. This machine's name if
/// `other` has no address here.
std::string own_address_towards(const std::string& other) {
  const auto addresses = addresses_of(other);
  for (const auto* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const int probe = socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    // Connecting a datagram socket sends nothing: it only looks up the route.
    const bool routed = connect(probe, each->ai_addr, each->ai_addrlen) == 0 &&
                        getsockname(probe, reinterpret_cast<sockaddr*>(&own), &length) == 0;
    close(probe);
    if (const auto text = text_of(reinterpret_cast<const sockaddr*>(&own)); routed && !text.empty()) return text;
  }
  return host_name();
}

/// MASTER_PORT as the user has set it, 0 if unset. @throws ConfigError
int wanted_port() {
  const auto text = environment("MASTER_PORT");
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (!text.empty() && (error != std::errc() || *end != '\0' || port < 1 || port > 65535))
    throw ConfigError(
        fmt::format("MASTER_PORT={}: expected a port number from 1 to 65535; unset it to use any free port", text));
  return port;
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& text) {
  std::vector<Host> hosts;
  std::istringstream parts(text + ",");
  for (std::string part; std::getline(parts, part, ',');)
    add(hosts, parse_host(part, fmt::format("--hosts {}", text.empty() ? "\"\"" : text)));
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  std::vector<Host> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string host, slots, more;
    if (!(words >> host)) continue;
    const auto where = fmt::format("{}:{}", path, number);
    if (words >> slots) {
      if (!slots.starts_with("slots=") || (words >> more))
        throw ConfigError(fmt::format("{}: \"{}\" after the host; write HOST, HOST:2 or HOST slots=2", where,
                                      more.empty() ? slots : more));
      host += ":" + slots.substr(slots.find('=') + 1);
    }
    add(hosts, parse_host(host, where));
  }
  if (file.bad() || number == 0)
    throw ConfigError(
        fmt::format("--hostfile {}: {}", path,
                    file.is_open() ? "is empty" : fmt::format("cannot be read: {}", std::strerror(errno))));
  if (hosts.empty()) throw ConfigError(fmt::format("--hostfile {}: has no host", path));
  return hosts;
}

std::vector<HostShare> share_ranks(int ranks, const std::vector<Host>& hosts) {
  if (hosts.empty()) return {{host_name(), 0, ranks, true}};
  std::vector<HostShare> shares;
  std::vector<std::string> all;
  int slots = 0;
  bool found_here = false;
  for (const auto& host : hosts) {
    const int count = std::min(host.slots, ranks - std::min(ranks, slots));
    all.push_back(fmt::format("{}:{}", host.name, host.slots));
    if (count > 0) shares.push_back({host.name, slots, count, !found_here && is_this_machine(host.name)});
    found_here = found_here || (count > 0 && shares.back().here);
    slots += host.slots;
  }
  if (ranks > slots)
    throw ConfigError(fmt::format("-n {}: the hosts have {} ({}); start fewer ranks, or give a host more slots", ranks,
                                  text::quantity(slots, "slot"), text::first_few(all)));
  return shares;
}

std::string address_name(const std::string& host) { return host.substr(host.rfind('@') + 1); }

comm::StoreAddress store_address(const std::vector<HostShare>& hosts) {
  if (hosts.size() == 1 && hosts[0].here) return {};
  const auto port = wanted_port();
  if (const auto set = environment("MASTER_ADDR"); !set.empty()) return {set, port};
  if (hosts.size() == 1) return {.port = port};
  const auto& first = hosts[0];
  if (first.here) return {own_address_towards(address_name(hosts[1].name)), port};
  const auto name = address_name(first.name);
  // The remote shell may know a name that nothing else does.
  if (addresses_of(name) == nullptr)
    throw ConfigError(fmt::format(
        "host {}: no address has this name; set MASTER_ADDR to the address at which the ranks reach this host", name));
  return {name, port};
}

}  // namespace trireme::apps
