// What a rank that our launchers have started tells its parent, and the form in which it does so: frames over a pipe.
// The rank writes them (parent.h), the parent reads them. Uses nothing of LibTorch.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_descriptor.h"

namespace trireme::ranks {

/// Names the pipe in a rank's environment: "DESCRIPTOR INODE". A program that is no rank of ours may have closed the
/// descriptor and opened another file under its number.
inline constexpr const char* kReportVariable = "TRIREME_REPORT";
std::string report_variable(int pipe);

enum class FrameKind : std::uint32_t {
  text,                 ///< the beginning of the next frame's text
  reached,              ///< the call of spawn()
  done,                 ///< the text is the result of spawn()'s function
  failed,               ///< the text is "PROGRAM\0MESSAGE", the value the exit code
  failed_alike,         ///< the same, and every rank has this error
  saved,                ///< the value is the step of the newest checkpoint
  smaller_micro_batch,  ///< memory ran out; a training may fit with microbatches of this many samples
  trains_in,            ///< the text is the run's folder
  takes_signals,        ///< a training takes signals for requests to save and stop
  stopped,              ///< it has stopped as it was asked to, and says itself what was saved
  late,                 ///< it could not save within this many seconds
  unsaved,              ///< the text says what is lost if it ends now, and what it can go on from
  trained,              ///< no longer takes signals so
  last = trained
};

/// A frame is this and `length` bytes of text. It is written at once, so those of several threads do not mix.
struct FrameHeader {
  FrameKind kind;
  std::uint32_t length;
  std::int64_t value;
  std::int64_t process;  ///< that writes it
};
inline constexpr std::size_t kMostText = PIPE_BUF - sizeof(FrameHeader);

/// An error that ends a rank. The exit code of a communication error: another rank is late, gone, or made other calls.
struct Failure {
  int code = 1;           ///< exit code
  std::string message{};  ///< one line, without the names of the program and the rank
  std::string program = "trireme";
  bool of_all = false;       ///< every rank has the same
  std::int64_t process = 0;  ///< that has reported it
};

/// What a rank, or all of them, have told.
struct RankReport {
  bool reached = false;
  std::optional<std::string> result{};
  std::optional<Failure> failure{};
  std::int64_t saved_step = -1;  ///< of the newest checkpoint that a training has saved; -1: none
  /// The microbatch with which a training whose memory ran out may fit; 0: none did, or it cannot be smaller.
  std::int64_t smaller_micro_batch = 0;
  std::string trains_in{};  ///< the folder in which a training trains; "": none
  enum class Training { none, takes_signals, over } training = Training::none;
  bool stopped = false;
  std::int64_t late_after = 0;  ///< seconds; 0: it was not late
  std::string unsaved{};
};

/// Adds what one of several ranks has told about their training.
void merge(RankReport& all, const RankReport& rank);

/// The parent's end of one rank's pipe.
class ReportReader {
 public:
  /// Reading must not block. What arrives goes into `report`.
  ReportReader(FileDescriptor pipe, RankReport& report) : pipe_(std::move(pipe)), report_(report) {}
  /// -1 at the end of the pipe.
  [[nodiscard]] int descriptor() const { return pipe_.get(); }
  /// Reads what has arrived. What follows something that is no frame is ignored.
  void read();

 private:
  void parse();
  void on_frame(const FrameHeader& header, std::string_view text);

  FileDescriptor pipe_;
  std::string bytes_;
  std::string text_;          ///< the beginning of a text
  std::int64_t text_of_ = 0;  ///< the process that writes it
  RankReport& report_;
  bool is_broken_ = false;
};

}  // namespace trireme::ranks
