#include "core/train/report/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/environment.h"
#include "core/base/files/files.h"

namespace trireme::train {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they are in memory");

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// A number in protobuf's variable length: seven bits a byte, the lowest first.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes += static_cast<char>(value);
}

// A field of a protobuf message: its number and its kind of encoding, then the value.
std::string field(unsigned number, std::uint64_t value) { return varint(number << 3) + varint(value); }
std::string field(unsigned number, double value) { return varint(number << 3 | 1) + raw(value); }
std::string field(unsigned number, float value) { return varint(number << 3 | 5) + raw(value); }
std::string field(unsigned number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) += bytes;
}

// The numbers of the fields are those of TensorFlow's event.proto and summary.proto.
namespace of_event {
constexpr unsigned kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace of_summary {
constexpr unsigned kValue = 1, kTag = 1, kSimpleValue = 2;
}
namespace of_session_log {
constexpr unsigned kStatus = 1;
constexpr std::uint64_t kStart = 1;
}  // namespace of_session_log

std::string event(std::int64_t step, const std::string& content) {
  return field(of_event::kWallTime, unix_seconds()) + field(of_event::kStep, static_cast<std::uint64_t>(step)) +
         content;
}

/// The masked checksum of a record: a checksum of data that contains checksums would be weak.
std::string checksum(std::string_view bytes) {
  const auto crc = crc32c(bytes);
  return raw(std::rotr(crc, 15) + 0xA282EAD8U);
}

std::string new_file_in(const std::string& folder) {
  make_folder(folder);
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.0", folder, static_cast<std::int64_t>(unix_seconds()),
                     host_name(), getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
  }
  return ~crc;
}

EventFile::EventFile(const std::string& folder) : file_(new_file_in(folder)) {
  write(event(0, field(of_event::kFileVersion, std::string_view("brain.Event:2"))));
}

void EventFile::restart_at(std::int64_t step) {
  write(event(step, field(of_event::kSessionLog, field(of_session_log::kStatus, of_session_log::kStart))));
}

void EventFile::add(std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += field(of_summary::kValue, field(of_summary::kTag, std::string_view(tag)) +
                                             field(of_summary::kSimpleValue, static_cast<float>(value)));
  write(event(step, field(of_event::kSummary, summary)));
}

void EventFile::write(std::string_view message) {
  const auto length = raw(static_cast<std::uint64_t>(message.size()));
  file_.add(length + checksum(length) + std::string(message) + checksum(message));  // TensorBoard waits for a whole one
}

}  // namespace trireme::train
