#include "core/comm/flight/stopping.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/base/repeated_signal.h"
#include "core/comm/flight/recorder.h"
#include "core/launch/parent.h"

namespace trireme::comm::flight {
namespace {

// Handlers read these: texts are complete before they are published.
std::array<std::string, NSIG> signal_texts;
std::array<std::array<char, 1024>, 2> unsaved_texts;
std::atomic<int> unsaved_index{0};
std::atomic<Control*> shared_by_all{nullptr};
std::atomic<bool> begun{false};
std::atomic<bool> speaks{false};  // this process says it, if no other one of its host does

/// Whether this process is to say it. May be called in a handler.
bool claims(std::int32_t Control::*said) {
  if (!speaks) return false;
  auto* shared = shared_by_all.load();
  std::int32_t nobody = 0;
  return shared == nullptr || std::atomic_ref(shared->*said).compare_exchange_strong(nobody, 1);
}

/// One line that is put together in a handler, where nothing may allocate.
class HandlerLine {
 public:
  void add(std::string_view text) {
    const auto length = std::min(text.size(), text_.size() - length_);
    std::memcpy(text_.data() + length_, text.data(), length);
    length_ += length;
  }
  void add_number(int number) {
    std::array<char, 12> digits;
    add({digits.data(), std::to_chars(digits.begin(), digits.end(), number).ptr});
  }
  void write_out() { (void)!::write(STDERR_FILENO, text_.data(), length_); }

 private:
  std::array<char, 2048> text_{};
  std::size_t length_ = 0;
};

}  // namespace

void begin_stops(const LaunchInfo& info) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1})
    signal_texts[static_cast<std::size_t>(number)] = fmt::format(
        "{}trireme: stopped by signal {} ({})", isatty(STDERR_FILENO) != 0 ? "\n" : "", number, strsignal(number));
  auto* shared = shared_control();
  shared_by_all = shared;
  // spawn() says nothing of signals, although it is a parent.
  const bool parent_speaks = parent::listens() && info.launcher != Launcher::spawn;
  // Of several hosts, on the first; of ranks that share nothing because they have a parent, the first.
  speaks = !parent_speaks && info.rank == (parent::listens() ? 0 : info.local_rank);
  begun = true;
  parent::takes_signals();
  if (shared == nullptr) return;
  for (std::int32_t Control::*said : {&Control::request_said, &Control::end_said})
    std::atomic_ref(shared->*said).store(0);
}

void end_stops() {
  speaks = false;
  if (begun.exchange(false)) parent::trained();
}

void note_unsaved(const std::string& text) {
  const int next = 1 - unsaved_index;
  auto& to = unsaved_texts[static_cast<std::size_t>(next)];
  to[text.copy(to.data(), to.size() - 1)] = '\0';
  unsaved_index = next;
  parent::unsaved(text);
}

void note_stopped() {
  parent::stopped();
  if (auto* shared = shared_by_all.load())
    std::atomic_ref(shared->request_said).store(1);  // it would come after the end
}

void say_request() {
  if (!claims(&Control::request_said)) return;
  // On a terminal, a line with ^C or a progress bar ends first.
  HandlerLine text;
  if (isatty(STDERR_FILENO) != 0) text.add("\n");
  text.add(kStoppingLine);
  text.write_out();
}

void say_end(int number, int late) {
  if (late > 0) parent::late(late);
  if (!claims(&Control::end_said)) return;
  HandlerLine text;
  text.add(signal_texts[static_cast<std::size_t>(number)]);
  if (late > 0) {
    text.add("; it could not save within run.stop_grace_s = ");
    text.add_number(late);
  }
  const char* unsaved = unsaved_texts[static_cast<std::size_t>(unsaved_index.load())].data();
  if (*unsaved != '\0') text.add("; ");
  text.add(unsaved);
  text.add("\n");
  text.write_out();
}

}  // namespace trireme::comm::flight
