#include "core/checkpoint/formats/pickle.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"

namespace trireme::checkpoint {
namespace {

using torch::jit::PickleOpCode;

constexpr auto kByteArray8 = static_cast<PickleOpCode>('\x96');
constexpr const char* kOrderedDict = "collections.OrderedDict";
constexpr std::size_t kLongestName = 200;

/// Runs one pickle. Its error messages begin with the file's path.
class PickleMachine {
 public:
  PickleMachine(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}

  Pickle run() {
    if (next() != PickleOpCode::PROTO) fail("its pickle is not of protocol 2 or newer");
    skip(1);
    for (auto opcode = next(); opcode != PickleOpCode::STOP; opcode = next())
      if (!literal(opcode) && !container(opcode) && !memo(opcode) && !object(opcode))
        fail(fmt::format("its pickle has the instruction 0x{:02x}, which no plain tensors need",
                         static_cast<std::uint8_t>(opcode)));
    out_.root = pop();
    out_.size = at_;
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
    if (out_.values.size() == kMaxPickleValues)
      fail(
          fmt::format("its pickle has over {} values, far more than a dictionary of tensors needs; save the tensors "
                      "alone",
                      kMaxPickleValues));
    stack_.push_back(&out_.values.emplace_back(std::move(value)));
    return *stack_.back();
  }
  void push_other() { stack_.push_back(other_); }
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
      push_other();
      return;
    }
    const bool negative = !digits.empty() && (static_cast<std::uint8_t>(digits.back()) & 0x80) != 0;
    std::int64_t value = negative ? -1 : 0;  // the bytes that are not written repeat the sign
    std::memcpy(&value, digits.data(), digits.size());
    push_integer(value);
  }

  bool literal(PickleOpCode opcode) {
    if (opcode == kByteArray8) opcode = PickleOpCode::BINBYTES8;  // of protocol 5, with the same layout
    switch (opcode) {
      case PickleOpCode::NONE:
        push_other();
        return true;
      case PickleOpCode::NEWTRUE:
      case PickleOpCode::NEWFALSE:
        push_integer(opcode == PickleOpCode::NEWTRUE ? 1 : 0);
        return true;
      case PickleOpCode::BINFLOAT:
        skip(sizeof(double));
        push_other();
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
      case PickleOpCode::LONG4:
        push_long(take(number<std::uint32_t>()));
        return true;
      case PickleOpCode::BINUNICODE:
      case PickleOpCode::BINSTRING:
        push_text(take(number<std::uint32_t>()));
        return true;
      case PickleOpCode::SHORT_BINUNICODE:
      case PickleOpCode::SHORT_BINSTRING:
        push_text(take(number<std::uint8_t>()));
        return true;
      case PickleOpCode::BINUNICODE8:
        push_text(take(number<std::uint64_t>()));
        return true;
      case PickleOpCode::BINBYTES:
        skip(number<std::uint32_t>());
        push_other();
        return true;
      case PickleOpCode::SHORT_BINBYTES:
        skip(number<std::uint8_t>());
        push_other();
        return true;
      case PickleOpCode::BINBYTES8:
        skip(number<std::uint64_t>());
        push_other();
        return true;
      default:
        return false;
    }
  }

  /// Adds elements to the list or dictionary on top. Of an object: a class derived from dict becomes a dictionary, what
  /// one derived from list holds is not kept.
  void extend(PickleKind kind, const std::vector<const PickleValue*>& values) {
    if (kind == PickleKind::dict && values.size() % 2 != 0) damaged("a key has no value");
    auto* value = top();
    if (value->kind == PickleKind::object) {
      if (kind != PickleKind::dict) return;
      value->kind = kind;
      value->items.clear();
    }
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
      case PickleOpCode::EMPTY_SET:
        push_other();
        return true;
      case PickleOpCode::ADDITEMS:
        static_cast<void>(pop_mark());
        static_cast<void>(top(PickleKind::other));
        return true;
      case PickleOpCode::FROZENSET:
        static_cast<void>(pop_mark());
        push_other();
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
      case PickleOpCode::POP:
        static_cast<void>(pop());
        return true;
      case PickleOpCode::POP_MARK:
        static_cast<void>(pop_mark());
        return true;
      case PickleOpCode::DUP:
        stack_.push_back(top());
        return true;
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    // Few bytes of a pickle can name a long text many times, so that only the beginning is copied.
    push({.kind = PickleKind::global,
          .text = fmt::format("{}.{}", module.substr(0, kLongestName), name.substr(0, kLongestName))});
  }
  /// Records the call of what is on top of the stack: a function or class, or what another call made.
  void call(const PickleValue* arguments) {
    const auto* called = pop();
    auto& made = push({.kind = PickleKind::object,
                       .text = called->kind == PickleKind::global ? called->text : "",
                       .items = {arguments}});
    if (made.text == kOrderedDict) fill_ordered(made, *arguments);
  }
  /// Python 2 wrote an ordered dictionary as a call with a list of pairs.
  void fill_ordered(PickleValue& made, const PickleValue& arguments) {
    std::vector<const PickleValue*> entries;
    if (arguments.items.size() > 1) return;
    for (const auto* list : arguments.items)
      for (const auto* pair : list->items) {
        if (list->kind != PickleKind::sequence || pair->kind != PickleKind::sequence || pair->items.size() != 2) return;
        entries.insert(entries.end(), pair->items.begin(), pair->items.end());
        if (++ordered_entries_ > kMaxPickleValues) damaged("its dictionaries have too many entries");
      }
    made = {.kind = PickleKind::dict, .items = std::move(entries)};
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
      case PickleOpCode::NEWOBJ_EX:  // with arguments by name
        static_cast<void>(pop(PickleKind::dict));
        [[fallthrough]];
      case PickleOpCode::REDUCE:
      case PickleOpCode::NEWOBJ:
        call(pop(PickleKind::sequence));
        return true;
      case PickleOpCode::BUILD: {  // sets attributes, such as a state dict's _metadata, which is not kept
        const auto* state = pop();
        if (top()->kind == PickleKind::object) top()->items.push_back(state);
        return true;
      }
      case PickleOpCode::BINPERSID:
        push({.kind = PickleKind::persistent, .items = {pop()}});
        return true;
      default:
        return false;
    }
  }

  const std::string& path_;
  std::string_view bytes_;
  std::size_t at_ = 0;
  Pickle out_;
  PickleValue* const other_ = &out_.values.emplace_back();  ///< stands for all that are not kept
  std::size_t ordered_entries_ = 0;                         ///< of all fill_ordered(), whose lists may be the same one
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  ///< sizes of the stack when a mark was set
  std::unordered_map<std::uint32_t, PickleValue*> memo_;
};

}  // namespace

Pickle read_pickle(const std::string& path, std::string_view bytes) { return PickleMachine(path, bytes).run(); }

}  // namespace trireme::checkpoint
