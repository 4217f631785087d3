// Runs the command that writes a shard, for ShardCache. All of its processes are in a group of their own, which ends
// with the call, and also when this process is killed: a second shell in the group waits for the end of a pipe that
// only this process holds open. They inherit nothing else of this process.
#pragma once

#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

namespace trireme::datasets {

/// Passes on what `sh -c COMMAND` writes to its standard output, in parts. It runs in the folder "/", so that its text
/// alone says what it does. `patience`: how long it may write nothing.
/// @throws DataError that begins with `name` when it ends with another exit status than 0 or by a signal, with the last
/// lines of its standard error; when it writes nothing for too long; when a stop is requested. What `output` throws
/// ends it, too.
void run_shard_command(const std::string& name, const std::string& command, std::chrono::milliseconds patience,
                       const std::stop_token& stop, const std::function<void(std::string_view)>& output);

}  // namespace trireme::datasets
