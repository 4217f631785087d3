// What a process finds around it: environment variables, the name of its host.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace trireme {

/// The value of an environment variable; "" if it is unset.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The folder for temporary files: TMPDIR, TEMP or TMP, else /tmp.
inline std::string temporary_folder() {
  for (const char* name : {"TMPDIR", "TEMP", "TMP"})
    if (auto named = environment(name); !named.empty()) return named;
  return "/tmp";
}

/// The folder of one of Trireme's caches of this user: XDG_CACHE_HOME/trireme/NAME, or else ~/.cache/trireme/NAME; "":
/// there is none.
inline std::string cache_folder(const std::string& name) {
  if (const auto caches = environment("XDG_CACHE_HOME"); !caches.empty()) return caches + "/trireme/" + name;
  const auto home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/trireme/" + name;
}

/// All of them, as NAME=VALUE.
inline std::vector<std::string> whole_environment() {
  std::vector<std::string> out;
  for (char** variable = environ; *variable != nullptr; ++variable) out.emplace_back(*variable);
  return out;
}

/// Sets a variable in such a list.
inline void set_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value) {
  std::erase_if(environment, [&](const std::string& variable) { return variable.starts_with(name + "="); });
  environment.push_back(name + "=" + value);
}

/// The name of this host; "localhost" if the system does not tell it.
inline std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

}  // namespace trireme
