// Messages outside a command's own output: each error is printed once, with the exit code. Only this file prints
// errors. Also handles the terminal's width and standard streams that are closed or full.
#pragma once

#include <cstddef>
#include <string>

namespace trireme::apps {

/// The line "PROGRAM: MESSAGE" of an error. On a terminal it is wrapped at spaces.
std::string error_line(const std::string& message, const std::string& program = "trireme");
/// Prints it to standard error, in one write so that lines of several ranks do not mix.
void say_error(const std::string& message, const std::string& program = "trireme");

/// An error that this process has like every rank of its launcher. Our launcher says it once for all.
void say_common_error(const std::string& message, int exit_code);

/// Columns of the terminal behind a stream, 0 if it is not a terminal. A rank uses the values that `trireme train`
/// has exported, because its own streams are pipes.
int terminal_columns(int stream);
/// Exports the terminal's width to child processes. `launched`: another launcher started this process.
void export_terminal(bool launched);

/// Writes to standard output. A failure is reported at the end: see check_output().
void put(const std::string& text);

/// Text for standard output, wrapped at spaces if that is a terminal.
std::string fitted(const std::string& text);
/// The same for a help text whose descriptions begin in column `column`: they stay there, or move below their names.
std::string fitted(const std::string& help, std::size_t column);

/// Opens closed standard streams before another file gets their descriptors. Writes to them then fail instead of
/// changing a file.
void keep_standard_streams();
/// The error that prevented part of standard output from being written; "" if everything was written.
std::string output_error();
/// Call at the end of a command whose output is its result. Returns `code`, or the exit code for an unwritable file if
/// part of the output was lost.
int check_output(int code);
/// For a run, whose folder contains everything that it prints: reports lost output and returns `code`.
int check_run_output(int code);

}  // namespace trireme::apps
