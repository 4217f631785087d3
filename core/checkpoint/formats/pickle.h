// Reads Python's pickle format (protocols 2 to 5) as data, without running anything.
//
// A pickle is a program for a small stack machine, which builds lists and dictionaries and may name any function of
// Python and call it. Here a call is only recorded, with the function's name and arguments: whatever a file names, no
// code of it runs and nothing is imported. Method: the opcodes of Python's documentation of the module pickletools.
//
// The bytes are not trusted: every read and every pop is checked. Values are held by the Pickle and refer to each other
// by pointers, possibly in cycles; neither reading nor destroying them recurses. There are at most kMaxPickleValues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// A tensor of a state dict needs about 20, so these are a hundred thousand tensors in at most 250 MB.
inline constexpr std::size_t kMaxPickleValues = std::size_t{2} << 20;

enum class PickleKind {
  other,       ///< None, a float, bytes, a set, or an integer beyond 64 bits: its value is not kept
  integer,     ///< in `integer`; False and True are 0 and 1
  text,        ///< in `text`
  sequence,    ///< a tuple or list; its elements are `items`
  dict,        ///< `items` are key, value, key, value, ...
  global,      ///< a class or function; `text` is "module.name", of long ones the beginnings
  object,      ///< what calling `text` makes; `items` are the sequence of arguments and, if it has one, its state
  persistent,  ///< an object that is stored elsewhere; `items` is one value: its id
};

struct PickleValue {
  PickleKind kind = PickleKind::other;
  std::int64_t integer = 0;
  std::string text{};
  std::vector<const PickleValue*> items{};
};

/// Holds the values, which refer to each other.
struct Pickle {
  std::deque<PickleValue> values;
  const PickleValue* root = nullptr;  ///< what was pickled; an object that got entries is a dict, as an OrderedDict is
  std::size_t size = 0;               ///< bytes
};

/// Reads the pickle with which the bytes begin. `path` is only for messages.
/// @throws CheckpointError that begins with `path`, for an instruction of earlier protocols, or damaged bytes.
Pickle read_pickle(const std::string& path, std::string_view bytes);

}  // namespace trireme::checkpoint
