#include "tests/failure/file_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string_view>

namespace trireme::tests {

FileFaults* file_faults = nullptr;

namespace {

std::string path_of(int file) {
  char target[4096];
  const auto size = ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), target, sizeof target);
  return size < 0 ? "" : std::string(target, static_cast<std::size_t>(size));
}

/// The path that a name in an open folder has.
std::string path_at(int folder, const char* name) {
  return folder == AT_FDCWD || name[0] == '/' ? name : path_of(folder) + "/" + name;
}

bool written_to(int file) {
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

enum class Effect { pass, fail, kill };

/// Counts an operation, and says what becomes of it. Removals do not fail for lack of space.
Effect effect_of(std::string_view what, const std::string& path, bool removes = false) {
  auto* faults = file_faults;
  if (faults == nullptr || !path.starts_with(faults->folder)) return Effect::pass;
  while (!faults->wait_while.empty() && ::access(faults->wait_while.c_str(), F_OK) == 0) ::usleep(10'000);
  const auto number = ++*faults->count;
  const auto operation = std::string(what) + " " + path;
  if (faults->list) {
    const std::lock_guard lock(faults->listing);
    faults->operations.push_back(operation);
  }
  const bool comes_later = faults->lasting && !removes && faults->at != 0 && number > faults->at;
  if (number != faults->at && operation != faults->named && !comes_later) return Effect::pass;
  if (faults->error == 0) return Effect::kill;
  errno = faults->error;
  return Effect::fail;
}

/// Whether the operation is to fail; does not return if the process is to die at it.
bool fails(std::string_view what, const std::string& path, bool removes = false) {
  const auto effect = effect_of(what, path, removes);
  if (effect == Effect::kill) die();
  return effect == Effect::fail;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace trireme::tests

using namespace trireme::tests;

// The C library declares most of these noexcept, and those that a thread may be cancelled in without it.
extern "C" {

int open(const char* path, int flags, ...) {
  static const auto call = next<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  // Folders are opened to be synced.
  const bool counts = (flags & O_ACCMODE) != O_RDONLY || (flags & O_DIRECTORY) != 0;
  if (counts && fails("open", path)) return -1;
  return call(path, flags, mode);
}

int close(int file) {
  static const auto call = next<int(int)>("close");
  const bool failed = file_faults != nullptr && written_to(file) && fails("close", path_of(file));
  const int error = errno;
  const int result = call(file);
  if (!failed) return result;
  errno = error;
  return -1;
}

ssize_t write(int file, const void* data, size_t size) {
  static const auto call = next<ssize_t(int, const void*, size_t)>("write");
  const auto effect = file_faults == nullptr ? Effect::pass : effect_of("write", path_of(file));
  if (effect == Effect::kill) {
    (void)!call(file, data, size / 2);
    die();
  }
  return effect == Effect::fail ? -1 : call(file, data, size);
}

int fallocate(int file, int mode, off_t begin, off_t size) {
  static const auto call = next<int(int, int, off_t, off_t)>("fallocate");
  if (file_faults != nullptr && fails("fallocate", path_of(file))) return -1;
  return call(file, mode, begin, size);
}

int ftruncate(int file, off_t size) noexcept {
  static const auto call = next<int(int, off_t)>("ftruncate");
  if (file_faults != nullptr && fails("ftruncate", path_of(file))) return -1;
  return call(file, size);
}

// Nothing is synced: the death of a process loses nothing that it has written, and a sync takes milliseconds.
int fsync(int file) { return file_faults != nullptr && fails("fsync", path_of(file)) ? -1 : 0; }

// The write() within the C library is out of reach; a stream is flushed by this one.
int fflush(FILE* stream) {
  static const auto call = next<int(FILE*)>("fflush");
  if (file_faults != nullptr && stream != nullptr && fails("fflush", path_of(fileno(stream)))) return EOF;
  return call(stream);
}

int rename(const char* from, const char* to) noexcept {
  static const auto call = next<int(const char*, const char*)>("rename");
  return fails("rename", to) ? -1 : call(from, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static const auto call = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  if (fails("rename", path_at(to_folder, to))) return -1;
  if (file_faults != nullptr && file_faults->no_exchange) {
    errno = EINVAL;
    return -1;
  }
  return call(from_folder, from, to_folder, to, flags);
}

int link(const char* from, const char* to) noexcept {
  static const auto call = next<int(const char*, const char*)>("link");
  return fails("link", to) ? -1 : call(from, to);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto call = next<int(const char*, mode_t)>("mkdir");
  return fails("mkdir", path) ? -1 : call(path, mode);
}

int unlink(const char* path) noexcept {
  static const auto call = next<int(const char*)>("unlink");
  return fails("unlink", path, true) ? -1 : call(path);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto call = next<int(int, const char*, int)>("unlinkat");
  return file_faults != nullptr && fails("unlink", path_at(folder, path), true) ? -1 : call(folder, path, flags);
}

int rmdir(const char* path) noexcept {
  static const auto call = next<int(const char*)>("rmdir");
  return fails("unlink", path, true) ? -1 : call(path);
}

int remove(const char* path) noexcept {
  static const auto call = next<int(const char*)>("remove");
  return fails("unlink", path, true) ? -1 : call(path);
}
}
