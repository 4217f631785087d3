#include "core/base/files/append_file.h"

#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/files.h"

namespace trireme {

AppendFile::AppendFile(std::string path)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), "ae"), &std::fclose) {
  if (!file_) throw CheckpointError(write_problem(path_, "cannot be opened for writing", errno));
}

void AppendFile::add(std::string_view record) {
  auto* const file = file_.get();
  const auto end = lseek(fileno(file), 0, SEEK_END);
  if (std::fwrite(record.data(), 1, record.size(), file) == record.size() && std::fflush(file) == 0) return;
  const int error = errno;
  // What stays in the stream's buffer or half written would spoil the next record.
  std::clearerr(file);
  __fpurge(file);
  if (ftruncate(fileno(file), end) != 0) std::fputc('\n', file);  // then only the line of this record is spoilt
  throw CheckpointError(write_problem(path_, "cannot be written", error));
}

}  // namespace trireme
