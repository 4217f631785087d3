#include "core/checkpoint/storage.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base/environment.h"
#include "core/base/file_descriptor.h"
#include "core/base/files/files.h"
#include "core/base/json_parse.h"
#include "core/base/json_text.h"
#include "core/checkpoint/shared_errors.h"
#include "core/comm/host_values.h"

namespace trireme::checkpoint {
namespace {

using nlohmann::json;

/// A file of this rank in the folder, whose name no earlier run has used; it goes with the object.
class Mark {
 public:
  explicit Mark(std::string folder) : folder_(std::move(folder)) {}
  ~Mark() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  /// All ranks' marks have a name from rank 0.
  void set_name(std::string name) { name_ = std::move(name); }
  /// @throws CheckpointError
  void make(int rank) {
    make_folder(folder_);
    path_ = path_of(rank);
    write_file(path_, "");
  }
  [[nodiscard]] const std::string& name() const { return name_; }
  /// Opened, because a network file system may answer a question about a name from its cache.
  [[nodiscard]] bool is_seen(int rank) const {
    return static_cast<bool>(FileDescriptor(::open(path_of(rank).c_str(), O_RDONLY | O_CLOEXEC)));
  }

 private:
  [[nodiscard]] std::string path_of(int rank) const { return path_in(folder_, fmt::format(".{}.{}.tmp", name_, rank)); }
  std::string folder_, name_, path_;
};

std::string random_name() {
  std::random_device random;
  return fmt::format("storage-{:08x}{:08x}", random(), random());
}

/// What every rank gives.
std::vector<json> exchange(const comm::World& world, const json& mine) {
  std::vector<json> out;
  for (const auto& text : comm::all_gather_text(world.group(), json_text(mine))) out.push_back(parse_json(text));
  return out;
}

}  // namespace

bool Storage::leads() const { return std::find(of_rank.begin(), of_rank.end(), number()) - of_rank.begin() == rank; }

Storage find_storage(const std::string& folder, const comm::World& world) {
  Storage out{.rank = world.rank(), .of_rank = std::vector<int>(static_cast<std::size_t>(world.size())), .hosts = {}};
  if (world.size() == 1) return out;
  Mark mark(folder);
  on_first_rank(world, [&] {
    mark.set_name(random_name());
    mark.make(0);
  });
  mark.set_name(comm::broadcast_text(world.group(), mark.name()));
  int first = mark.is_seen(0) ? 0 : -1;  // the first rank whose mark this one sees
  const auto seen = exchange(world, {{"sees", first == 0}, {"host", host_name()}});
  const bool all_see = std::all_of(seen.begin(), seen.end(), [](const json& of_rank) { return of_rank.at("sees"); });
  if (all_see) return out;
  const auto make = [&] {
    if (first < 0) mark.make(world.rank());
  };
  on_every_rank(world, make, "a folder cannot be written to");
  for (int rank = 1; first < 0; ++rank)
    if (rank == world.rank() || mark.is_seen(rank)) first = rank;
  std::map<int, int> numbers;  // of storages, by their first rank
  const auto firsts = exchange(world, {{"first", first}});
  for (std::size_t rank = 0; rank < firsts.size(); ++rank) {
    const auto [number, is_new] = numbers.try_emplace(firsts[rank].at("first"), static_cast<int>(numbers.size()));
    if (is_new) out.hosts.push_back(seen[rank].at("host"));
    out.of_rank[rank] = number->second;
  }
  return out;
}

}  // namespace trireme::checkpoint
