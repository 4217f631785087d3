// Reads Python's pickle format (protocols 2 to 5) as data, without running anything.
//
// A pickle is a program for a small stack machine, which builds lists and dictionaries and may name any function of
// Python and call it. Here a call is only recorded, with the function's name and arguments, and a name outside the
// caller's list ends the reading with an error. The instructions are those that torch.save writes for tensors; the
// others are refused. Method: the opcodes of Python's documentation of the module pickletools.
//
// The bytes are not trusted: every read and every pop is checked. Values are held by the Pickle and refer to each other
// by pointers, possibly in cycles; neither reading nor destroying them recurses. Memory is linear in the bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

enum class PickleKind {
  other,       ///< None, a bool, a float, bytes, or an integer beyond 64 bits: its value is not kept
  integer,     ///< in `integer`
  text,        ///< in `text`
  sequence,    ///< a tuple or list; its elements are `items`
  dict,        ///< `items` are key, value, key, value, ...
  global,      ///< a class or function; `text` is "module.name"
  call,        ///< of the function `text`; `items` is one sequence: the arguments
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
  const PickleValue* root = nullptr;  ///< what was pickled
};

/// Python's ordered dictionary; reading makes a call of it without arguments a PickleKind::dict.
inline constexpr const char* kOrderedDict = "collections.OrderedDict";

/// `globals`: the names ("module.name") that the pickle may mention. `path` is only for messages.
/// @throws CheckpointError that begins with `path`, for another name, another instruction, or damaged bytes.
Pickle read_pickle(const std::string& path, std::string_view bytes, const std::set<std::string, std::less<>>& globals);

}  // namespace trireme::checkpoint
