// The tree that the parser makes of a template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/jinja/value.h"

namespace trireme::jinja {

/// What `parts` of a Node are; those in brackets may be null.
enum class NodeKind : std::uint8_t {
  // Expressions
  constant,     ///< value
  variable,     ///< name
  list,         ///< items
  tuple,        ///< items
  dict,         ///< key, value, key, value, ...
  member,       ///< object; its name
  element,      ///< object, key
  slice,        ///< object, [begin], [end], [step]
  call,         ///< function, arguments; their names, "" for a positional one
  filter,       ///< value, arguments; name and names
  test,         ///< value, arguments; name and names
  negation,     ///< operand of `not`
  binary,       ///< two operands; name: the operator, `and` and `or` too
  conditional,  ///< condition, value, [other value]
  capture,      ///< block: the text of its statements
  // Statements
  text,        ///< name
  output,      ///< expression
  block,       ///< statements
  branch,      ///< condition, block, condition, block, ..., [block]
  loop,        ///< target, items, [condition], block, [block if there were no items]
  assign,      ///< target, value
  macro,       ///< capture, [default of each parameter]; name, and names of the parameters
  generation,  ///< capture
  leave,       ///< break
  next,        ///< continue
};

struct Node {
  NodeKind kind;
  std::size_t line;
  std::string name;
  std::vector<std::unique_ptr<Node>> parts;
  std::vector<std::string> names;
  Value value;
  std::size_t depth = 1;        ///< of the tree
  bool has_generation = false;  ///< of the root: whether the template has one
};

/// @throws Problem with the line
std::unique_ptr<Node> parse(std::string_view source);

}  // namespace trireme::jinja
