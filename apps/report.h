// What a command says outside its own output: one message for an error, once, and the exit code. The only place of the
// product that prints errors. Here too the terminal's width, and standard streams that are closed or full.
#pragma once

#include <cstddef>
#include <string>

namespace trireme::apps {

/// One line "trireme: <prefix><message>" on standard error, in one write so that lines of several ranks do not mix. On
/// a terminal it is broken at words.
void say_error(const std::string& message, const std::string& prefix = "");

/// Columns of the terminal behind a stream, 0 when it is none. A rank goes by what the front has seen, for mpirun gives
/// it a pipe or a terminal of its own.
int terminal_columns(int stream);
/// Tells the processes that this one starts: `launched`: another launcher has started this one, and has its output.
void export_terminal(bool launched);

/// Writes to standard output. What cannot be written is lost, and told at the end: see check_output().
void put(const std::string& text);

/// Text for standard output, broken at words where that is a terminal.
std::string fitted(const std::string& text);
/// The same of a help text whose descriptions begin in that column: they stay in it, or stand below their names.
std::string fitted(const std::string& help, std::size_t column);

/// Opens the standard streams that are closed, before another file gets their numbers: writing to them then fails, and
/// changes no file.
void keep_standard_streams();
/// The text of the error that kept a part of standard output from being written; "": all of it was.
std::string output_error();
/// At the end of a command. `code`, or when a part of its output is lost, and its output is its result, that of a file
/// that cannot be written.
int check_output(int code);
/// Of a run, which has all that it prints in its folder: the loss is said, and `code` stays.
int check_run_output(int code);

}  // namespace trireme::apps
