// Trace: records what this rank does over time, for a timeline. It is process-wide, like the log. It is on only for the
// steps that are traced; otherwise it costs the check of one flag.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::trace {

/// Seconds of the steady clock, which all ranks of one machine share.
double now();

struct Span {
  std::string track;  ///< "compute", "comm dp", ...: the rows of a timeline
  std::string name;
  double begin, end;
};

[[nodiscard]] bool on();
/// Starts tracing. Each Scope then waits for the work on `device` before it ends, so that spans include it.
void start(c10::Device device);
/// Stops tracing and returns all spans since start(). Thread-safe, as are on() and add().
std::vector<Span> stop();
void add(std::string track, std::string name, double begin, double end);

/// Records a span in the compute track from here to the end of the scope, named "what" or "what number".
class Scope {
 public:
  explicit Scope(const char* what, std::int64_t number = -1) : what_(what), number_(number), begin_(on() ? now() : 0) {}
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const char* what_;
  std::int64_t number_;
  double begin_;
};

/// Waits until the traced device has finished its work; returns at once if tracing is off.
void synchronize();

}  // namespace trireme::trace
