#include "core/checkpoint/formats/pickle.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::checkpoint {
namespace {

using torch::jit::PickleOpCode;

/// Runs one pickle. Its error messages begin with the file's path.
class PickleMachine {
 public:
  PickleMachine(const std::string& path, std::string_view bytes, const std::set<std::string, std::less<>>& globals)
      : path_(path), bytes_(bytes), globals_(globals) {}

  Pickle run() {
    if (next() != PickleOpCode::PROTO) fail("its data.pkl is not a pickle of protocol 2 or newer");
    skip(1);
    for (auto opcode = next(); opcode != PickleOpCode::STOP; opcode = next())
      if (!literal(opcode) && !container(opcode) && !memo(opcode) && !object(opcode))
        fail(fmt::format("its pickle has the instruction 0x{:02x}, which no plain tensors need",
                         static_cast<std::uint8_t>(opcode)));
    out_.root = pop();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw CheckpointError(fmt::format("{}: {}", path_, what)); }
  [[noreturn]] void damaged(const char* what) const {
    fail(fmt::format("its pickle is damaged at byte {}: {}", at_, what));
  }

  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) damaged("it ends too early");
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  void skip(std::uint64_t size) { static_cast<void>(take(size)); }
  template <class Number>
  Number number() {
    Number out;  // little-endian, like the machines that this runs on (see core/base/safetensors_file.cpp)
    std::memcpy(&out, take(sizeof out).data(), sizeof out);
    return out;
  }
  PickleOpCode next() { return static_cast<PickleOpCode>(take(1)[0]); }
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) damaged("a name has no end");
    const auto text = take(end - at_);
    skip(1);
    return text;
  }

  PickleValue& push(PickleValue value) {
    stack_.push_back(&out_.values.emplace_back(std::move(value)));
    return *stack_.back();
  }
  void push_integer(std::int64_t value) { push({.kind = PickleKind::integer, .integer = value}); }
  void push_text(std::string_view value) { push({.kind = PickleKind::text, .text = std::string(value)}); }

  /// The top of the stack above the last mark.
  PickleValue* top() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) damaged("a value is missing");
    return stack_.back();
  }
  PickleValue* pop() {
    auto* value = top();
    stack_.pop_back();
    return value;
  }
  PickleValue* top(PickleKind kind) {
    if (top()->kind != kind) damaged("a value of another type is needed");
    return stack_.back();
  }
  PickleValue* pop(PickleKind kind) {
    static_cast<void>(top(kind));
    return pop();
  }
  /// The last `count` values, in the order in which they were pushed.
  std::vector<const PickleValue*> pop_many(std::size_t count) {
    std::vector<const PickleValue*> out(count);
    for (auto value = out.rbegin(); value != out.rend(); ++value) *value = pop();
    return out;
  }
  /// The values above the last mark, which is removed.
  std::vector<const PickleValue*> pop_mark() {
    if (marks_.empty()) damaged("a mark is missing");
    auto out = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return out;
  }

  void push_long(std::string_view digits) {
    if (digits.size() > sizeof(std::int64_t)) {
      push({});
      return;
    }
    const bool negative = !digits.empty() && (static_cast<std::uint8_t>(digits.back()) & 0x80) != 0;
    std::int64_t value = negative ? -1 : 0;  // the bytes that are not written repeat the sign
    std::memcpy(&value, digits.data(), digits.size());
    push_integer(value);
  }

  bool literal(PickleOpCode opcode) {
    switch (opcode) {
      case PickleOpCode::NONE:
      case PickleOpCode::NEWTRUE:
      case PickleOpCode::NEWFALSE:
        push({});
        return true;
      case PickleOpCode::BINFLOAT:
        skip(sizeof(double));
        push({});
        return true;
      case PickleOpCode::BININT:
        push_integer(number<std::int32_t>());
        return true;
      case PickleOpCode::BININT1:
        push_integer(number<std::uint8_t>());
        return true;
      case PickleOpCode::BININT2:
        push_integer(number<std::uint16_t>());
        return true;
      case PickleOpCode::LONG1:
        push_long(take(number<std::uint8_t>()));
        return true;
      case PickleOpCode::BINUNICODE:
        push_text(take(number<std::uint32_t>()));
        return true;
      case PickleOpCode::SHORT_BINUNICODE:
        push_text(take(number<std::uint8_t>()));
        return true;
      case PickleOpCode::BINBYTES:
        skip(number<std::uint32_t>());
        push({});
        return true;
      case PickleOpCode::SHORT_BINBYTES:
        skip(number<std::uint8_t>());
        push({});
        return true;
      default:
        return false;
    }
  }

  void extend(PickleKind kind, const std::vector<const PickleValue*>& values) {
    if (kind == PickleKind::dict && values.size() % 2 != 0) damaged("a key has no value");
    auto& items = top(kind)->items;
    items.insert(items.end(), values.begin(), values.end());
  }

  bool container(PickleOpCode opcode) {
    switch (opcode) {
      case PickleOpCode::MARK:
        marks_.push_back(stack_.size());
        return true;
      case PickleOpCode::EMPTY_DICT:
        push({.kind = PickleKind::dict});
        return true;
      case PickleOpCode::EMPTY_LIST:
      case PickleOpCode::EMPTY_TUPLE:
        push({.kind = PickleKind::sequence});
        return true;
      case PickleOpCode::TUPLE: {
        auto items = pop_mark();
        push({.kind = PickleKind::sequence, .items = std::move(items)});
        return true;
      }
      case PickleOpCode::TUPLE1:
      case PickleOpCode::TUPLE2:
      case PickleOpCode::TUPLE3: {
        auto items = pop_many(static_cast<std::size_t>(opcode) - static_cast<std::size_t>(PickleOpCode::TUPLE1) + 1);
        push({.kind = PickleKind::sequence, .items = std::move(items)});
        return true;
      }
      case PickleOpCode::APPEND:
        extend(PickleKind::sequence, pop_many(1));
        return true;
      case PickleOpCode::APPENDS:
        extend(PickleKind::sequence, pop_mark());
        return true;
      case PickleOpCode::SETITEM:
        extend(PickleKind::dict, pop_many(2));
        return true;
      case PickleOpCode::SETITEMS:
        extend(PickleKind::dict, pop_mark());
        return true;
      default:
        return false;
    }
  }

  void recall(std::uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) damaged("it refers to a value that was not stored");
    stack_.push_back(found->second);
  }

  bool memo(PickleOpCode opcode) {
    switch (opcode) {
      case PickleOpCode::BINPUT:
        memo_[number<std::uint8_t>()] = top();
        return true;
      case PickleOpCode::LONG_BINPUT:
        memo_[number<std::uint32_t>()] = top();
        return true;
      case PickleOpCode::MEMOIZE:
        memo_[static_cast<std::uint32_t>(memo_.size())] = top();
        return true;
      case PickleOpCode::BINGET:
        recall(number<std::uint8_t>());
        return true;
      case PickleOpCode::LONG_BINGET:
        recall(number<std::uint32_t>());
        return true;
      case PickleOpCode::FRAME:
        skip(sizeof(std::uint64_t));
        return true;
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    auto text = fmt::format("{}.{}", module, name);
    if (!globals_.contains(text))
      fail(fmt::format(
          "uses {}, which is no tensor: only plain tensors are read, and nothing in the file is run; if you "
          "trust it, load it in Python and save model.state_dict() or the dictionary of tensors alone",
          text::printable(text.substr(0, 200))));
    push({.kind = PickleKind::global, .text = std::move(text)});
  }

  bool object(PickleOpCode opcode) {
    switch (opcode) {
      case PickleOpCode::GLOBAL: {
        const auto module = line();
        push_global(module, line());
        return true;
      }
      case PickleOpCode::STACK_GLOBAL: {
        const auto* name = pop(PickleKind::text);
        push_global(pop(PickleKind::text)->text, name->text);
        return true;
      }
      case PickleOpCode::REDUCE: {
        const auto* arguments = pop(PickleKind::sequence);
        const auto* function = pop(PickleKind::global);
        if (function->text == kOrderedDict && arguments->items.empty())
          push({.kind = PickleKind::dict});
        else
          push({.kind = PickleKind::call, .text = function->text, .items = {arguments}});
        return true;
      }
      case PickleOpCode::BUILD:  // sets attributes of a dictionary, such as a state dict's _metadata: no tensors
        static_cast<void>(pop());
        static_cast<void>(top(PickleKind::dict));
        return true;
      case PickleOpCode::BINPERSID:
        push({.kind = PickleKind::persistent, .items = {pop()}});
        return true;
      default:
        return false;
    }
  }

  const std::string& path_;
  std::string_view bytes_;
  const std::set<std::string, std::less<>>& globals_;
  std::size_t at_ = 0;
  Pickle out_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  ///< sizes of the stack when a mark was set
  std::unordered_map<std::uint32_t, PickleValue*> memo_;
};

}  // namespace

Pickle read_pickle(const std::string& path, std::string_view bytes, const std::set<std::string, std::less<>>& globals) {
  return PickleMachine(path, bytes, globals).run();
}

}  // namespace trireme::checkpoint
