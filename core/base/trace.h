// Trace: what this rank does when, for a timeline. Process-wide, like its log; off but for the steps that somebody
// wants to see, and then nothing but a flag is read.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::trace {

/// Seconds of the steady clock, which the ranks of one machine share.
double now();

struct Span {
  std::string lane;  ///< "compute", "comm dp", ...: what stands below one another in a timeline
  std::string name;
  double begin, end;
};

[[nodiscard]] bool on();
/// What is traced computes to its end before it is timed: work on `device` is waited for after each span.
void start(c10::Device device);
/// Off again; all that came since start(). Thread-safe, as are on() and add().
std::vector<Span> stop();
void add(std::string lane, std::string name, double begin, double end);

/// A span of the compute lane from here to the end of the scope: "what", or "what number".
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

/// Until the traced device has done what it was given; at once where nothing is traced.
void synchronize();

}  // namespace trireme::trace
