#include "apps/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/launch/parent.h"

namespace trireme::apps {
namespace {

const char* variable_of(int stream) { return stream == STDOUT_FILENO ? "TRIREME_TERMINAL" : "TRIREME_TERMINAL_ERR"; }

int columns_of(int stream) {
  winsize size{};
  if (isatty(stream) == 0) return 0;
  return ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

std::string error_line(const std::string& message, const std::string& program) {
  return text::wrap(program + ": " + message, static_cast<std::size_t>(terminal_columns(STDERR_FILENO)), 2) + "\n";
}

void say_error(const std::string& message, const std::string& program) {
  const auto line = error_line(message, program);
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void say_common_error(const std::string& message, int exit_code) {
  if (parent::listens())
    parent::failed({.code = exit_code, .message = message, .of_all = true});
  else
    say_error(message);
}

int terminal_columns(int stream) {
  if (const char* known = std::getenv(variable_of(stream))) return std::max(0, std::atoi(known));
  return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr ? 0 : columns_of(stream);
}

void export_terminal(bool launched) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    setenv(variable_of(stream), std::to_string(launched ? 0 : columns_of(stream)).c_str(), 1);
}

void put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string fitted(const std::string& text) {
  return text::wrap(text, static_cast<std::size_t>(terminal_columns(STDOUT_FILENO)));
}

std::string fitted(const std::string& help, std::size_t column) {
  constexpr std::size_t kTwoColumns = 60, kBelow = 6;
  const auto columns = static_cast<std::size_t>(terminal_columns(STDOUT_FILENO));
  if (columns == 0) return help;
  std::string out;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const bool described =
        line.size() > column && line.starts_with("  ") && line.substr(column - 2, 2) == "  " && line[column] != ' ';
    if (!described || columns >= kTwoColumns) {
      out += text::wrap(line, columns, described ? std::optional(column) : std::nullopt) + "\n";
      continue;
    }
    const auto name = line.substr(0, line.find_last_not_of(' ', column - 1) + 1);
    if (!name.empty()) out += name + "\n";
    out += text::wrap(std::string(kBelow, ' ') + line.substr(column), columns, kBelow) + "\n";
  }
  return out;
}

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF)  // open() returns the lowest free descriptor, which is this one
      if (open("/dev/null", O_RDONLY) != stream) return;
}

std::string output_error() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return "";
  // The errno of an earlier write is lost; another write has the same cause.
  return write(STDOUT_FILENO, "\n", 1) < 0 ? std::strerror(errno) : "a write failed";
}

int check_output(int code) {
  const auto error = output_error();
  if (error.empty() || code != 0) return code;
  if (error == std::strerror(EPIPE)) return 128 + SIGPIPE;  // the reader has what it wanted, as `head` does
  constexpr int kCode = static_cast<int>(ExitCode::checkpoint);
  say_common_error(fmt::format("standard output cannot be written: {}", error), kCode);
  return kCode;
}

int check_run_output(int code) {
  const auto error = output_error();
  if (!error.empty() && code == 0)
    say_error(
        fmt::format("standard output could not be written: {}. The run went on; metrics.jsonl and summary.json in "
                    "its folder are complete",
                    error));
  return code;
}

}  // namespace trireme::apps
