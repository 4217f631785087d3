#include "core/comm/native/link.h"

#include <algorithm>
#include <array>

namespace trireme::comm::native {
namespace {

constexpr std::size_t kDataFrame = 128u << 10;  // after so many bytes of a long message, frames come first
constexpr std::size_t kTurn = 1u << 20;         // then other ranks and operations have their turn

}  // namespace

bool Link::write(const Frame& frame, const std::byte* data, std::size_t bytes, std::uint64_t transfer) {
  if (idle()) {
    current_ = {frame, data, bytes, 0};
    written_ = 0;
    writing_ = !write_current();
    if (!writing_) return true;
    current_.transfer = transfer;
  } else {
    frames_.push_back({frame, data, bytes, transfer});
  }
  return false;
}

void Link::stream(std::uint64_t receiver, const std::byte* data, std::size_t bytes, std::uint64_t transfer) {
  streams_.push_back({receiver, data, bytes, transfer});
}

bool Link::next() {
  written_ = 0;
  if (!frames_.empty()) {
    current_ = frames_.front();
    frames_.pop_front();
    return true;
  }
  if (streams_.empty()) return false;
  auto& stream = streams_.front();
  const auto bytes = std::min(stream.bytes, kDataFrame);
  const bool last = bytes == stream.bytes;
  current_ = {{.kind = Frame::Kind::data, .bytes = bytes, .receiver = stream.receiver},
              stream.data,
              bytes,
              last ? stream.transfer : 0};
  stream.data += bytes;
  stream.bytes -= bytes;
  if (last) streams_.pop_front();
  return true;
}

bool Link::write_current() {
  auto* header = reinterpret_cast<std::byte*>(&current_.frame);
  std::array<iovec, 2> parts;
  std::size_t count = 0;
  if (written_ < sizeof(Frame)) parts[count++] = {header + written_, sizeof(Frame) - written_};
  const auto data_written = written_ < sizeof(Frame) ? 0 : written_ - sizeof(Frame);
  if (data_written < current_.bytes)
    parts[count++] = {const_cast<std::byte*>(current_.data) + data_written, current_.bytes - data_written};
  written_ += rings_->put(std::span(parts.data(), count));
  return written_ == sizeof(Frame) + current_.bytes;
}

bool Link::flush() {
  std::size_t moved = 0;
  while (moved < kTurn) {
    if (!writing_ && !next()) return false;
    const auto before = written_;
    writing_ = !write_current();
    if (writing_) return false;
    moved += written_ - before;
    if (current_.transfer != 0) sink_->written(current_.transfer);
  }
  return !idle();
}

bool Link::read() {
  bool any = false;
  for (std::size_t moved = 0; moved < kTurn;) {
    if (frame_read_ < sizeof(Frame)) {
      const auto got = rings_->get(reinterpret_cast<std::byte*>(&frame_) + frame_read_, sizeof(Frame) - frame_read_);
      if (got == 0) return any;
      any = true;
      frame_read_ += got;
      moved += got;
      if (frame_read_ < sizeof(Frame)) continue;
      const bool carries = frame_.kind == Frame::Kind::eager || frame_.kind == Frame::Kind::data;
      place_left_ = carries ? frame_.bytes : 0;
      place_ = nullptr;
    }
    if (place_left_ > 0) {
      if (place_ == nullptr) place_ = sink_->place(*this, frame_);
      if (place_ == nullptr) return any;
      const auto got = rings_->get(place_, place_left_);
      if (got == 0) return any;
      any = true;
      place_ += got;
      place_left_ -= got;
      moved += got;
      if (place_left_ > 0) continue;
    }
    frame_read_ = 0;
    sink_->arrived(*this, frame_);
  }
  return true;
}

bool Link::take(std::byte* to) {
  const auto got = rings_->get(to, place_left_);
  place_ = to + got;
  place_left_ -= got;
  if (place_left_ > 0) return false;
  frame_read_ = 0;
  sink_->arrived(*this, frame_);
  return true;
}

}  // namespace trireme::comm::native
