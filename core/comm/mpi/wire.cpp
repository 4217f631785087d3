#include "core/comm/mpi/wire.h"

#include <fmt/format.h>

#include <bit>

#include "core/base/error.h"

namespace trireme::comm::mpi {
namespace {

// Open MPI's handles are pointers; a null pointer is none of them.
static_assert(sizeof(MPI_Request) == sizeof(engine::Request) && sizeof(MPI_Comm) == sizeof(std::uint64_t) &&
              sizeof(MPI_Message) == sizeof(std::uintptr_t) && MPI_ANY_SOURCE == engine::kAnySource);

std::string reason(const char* what, int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return fmt::format("{}: {}", what, std::string_view(text, static_cast<std::size_t>(length)));
}

}  // namespace

engine::Channel channel_of(MPI_Comm comm) {
  engine::Channel channel;
  channel.context = std::bit_cast<std::uint64_t>(comm);
  MPI_Comm_rank(comm, &channel.rank);
  MPI_Comm_size(comm, &channel.size);
  return channel;
}

MPI_Comm communicator(const engine::Channel& channel) { return std::bit_cast<MPI_Comm>(channel.context); }

// MPI_Comm_create_group needs messages among its members only, whereas MPI_Comm_split would gather the colours of the
// whole world on each rank.
std::uint64_t MpiWire::open(const engine::Channel& world, const std::vector<int>& ranks, const std::string& axis,
                            std::uint64_t) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Group everyone = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
  MPI_Comm_group(communicator(world), &everyone);
  MPI_Group_incl(everyone, static_cast<int>(ranks.size()), ranks.data(), &members);
  const int code = MPI_Comm_create_group(communicator(world), members, 0, &comm);
  MPI_Group_free(&members);
  MPI_Group_free(&everyone);
  if (code != MPI_SUCCESS)
    throw CommError(fmt::format("cannot create a communicator for group {}: MPI error {}", axis, code));
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return std::bit_cast<std::uint64_t>(comm);
}

engine::Request MpiWire::send(const engine::Channel& channel, int tag, int peer, const std::byte* data,
                              std::size_t bytes) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, communicator(channel), &request);
  if (code != MPI_SUCCESS) throw engine::WireError(peer, reason("cannot be sent to", code));
  return std::bit_cast<engine::Request>(request);
}

std::optional<engine::Matched> MpiWire::match(const engine::Channel& channel, int tag, int peer) {
  int found = 0, bytes = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  const int code = MPI_Improbe(peer, tag, communicator(channel), &found, &message, &status);
  if (code != MPI_SUCCESS) throw CommError(fmt::format("group {}: {}", channel.axis, reason("no messages", code)));
  if (found == 0) return std::nullopt;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  return engine::Matched{status.MPI_SOURCE, static_cast<std::size_t>(bytes), std::bit_cast<std::uintptr_t>(message)};
}

engine::Request MpiWire::receive(const engine::Channel&, const engine::Matched& matched, std::byte* data) {
  MPI_Request request = MPI_REQUEST_NULL;
  auto message = std::bit_cast<MPI_Message>(matched.message);
  const int code = MPI_Imrecv(data, static_cast<int>(matched.bytes), MPI_BYTE, &message, &request);
  if (code != MPI_SUCCESS) throw engine::WireError(matched.source, reason("cannot be received from", code));
  return std::bit_cast<engine::Request>(request);
}

std::size_t MpiWire::test(std::span<engine::Request> requests, std::span<const int> peers) {
  requests_.clear();
  for (const auto request : requests)
    requests_.push_back(request == engine::kNoRequest ? MPI_REQUEST_NULL : std::bit_cast<MPI_Request>(request));
  indices_.resize(requests.size());
  statuses_.resize(requests.size());
  int completed = 0;
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed, indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) throw engine::WireError(peers[0], reason("failed", code));
  if (completed == MPI_UNDEFINED) return 0;
  for (int i = 0; i < completed; ++i)
    requests[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])] = engine::kNoRequest;
  for (int i = 0; code != MPI_SUCCESS && i < completed; ++i)
    if (const int error = statuses_[static_cast<std::size_t>(i)].MPI_ERROR; error != MPI_SUCCESS)
      throw engine::WireError(peers[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])],
                              reason("failed", error));
  return static_cast<std::size_t>(completed);
}

}  // namespace trireme::comm::mpi
