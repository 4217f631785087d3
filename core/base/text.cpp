#include "core/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace trireme::text {
namespace {

// Insertions, deletions, substitutions and swaps of neighbours ("trian") each count as one edit.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// Length in bytes of the UTF-8 character at the beginning of `text`; 0 if there is no valid one (Unicode's table 3-7:
// overlong forms and surrogates are invalid).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto in = [&](std::size_t i, unsigned low, unsigned high) { return byte(i) >= low && byte(i) <= high; };
  const auto tail = [&](std::size_t i) { return in(i, 0x80, 0xBF); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (first >= 0xE0 && first <= 0xEF) return in(1, low, high) && tail(2) ? 3 : 0;
  if (first >= 0xF0 && first <= 0xF4) return in(1, low, high) && tail(2) && tail(3) ? 4 : 0;
  return 0;
}

// Wraps one line that is too long. Spaces between words do not change, except at line breaks.
std::string wrap_line(std::string_view line, std::size_t columns, std::optional<std::size_t> hang) {
  const auto lead = std::min(line.find_first_not_of(' '), line.size());
  const std::string margin(std::min(hang.value_or(lead + 2), 2 * columns / 3), ' ');
  std::string out(line.substr(0, lead));
  std::size_t used = lead;
  bool empty = true;  // the current output line has no word yet
  for (std::size_t at = lead; at < line.size();) {
    const auto end = std::min(line.find(' ', at), line.size());
    const auto next = std::min(line.find_first_not_of(' ', end), line.size());
    const auto word = line.substr(at, end - at);
    if (const auto begin = out.find_last_not_of(' '); !empty && used + width(word) > columns) {
      out.erase(begin + 1);
      out += "\n" + margin;
      used = margin.size();
    }
    out += line.substr(at, next - at);
    used += width(word) + (next - end);
    empty = false;
    at = next;
  }
  return out;
}

bool glob(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (std::size_t skip = 0; skip <= name.size(); ++skip)
      if (glob(name.substr(skip), pattern.substr(1))) return true;
    return false;
  }
  return !name.empty() && name[0] == pattern[0] && glob(name.substr(1), pattern.substr(1));
}

}  // namespace

std::string nearest(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const auto near = nearest(name, candidates);
  return near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
}

std::string thousands(std::int64_t n) {
  std::string digits = fmt::format("{}", n < 0 ? -n : n);
  for (std::int64_t at = static_cast<std::int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return (n < 0 ? "-" : "") + digits;
}

std::optional<std::int64_t> integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::string quantity(std::int64_t n, std::string_view noun) {
  return fmt::format("{} {}{}", thousands(n), noun, n == 1 ? "" : "s");
}

std::string clock(double seconds) {
  const auto s = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string bytes(double n) {
  static constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (std::abs(n) >= 1024 && unit + 1 < units.size()) {
    n /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", n) : fmt::format("{:.1f} {}", n, units[unit]);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(separator, begin), text.size());
    out.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts.begin(), parts.end(), separator));
}

std::string first_few(std::span<const std::string> parts, std::size_t shown) {
  const auto out = join(parts.first(std::min(parts.size(), shown)));
  return parts.size() > shown ? fmt::format("{} and {} more", out, parts.size() - shown) : out;
}

std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string columns(std::span<const std::vector<std::string>> rows, const std::vector<bool>& right) {
  std::vector<std::size_t> widths(right.size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string out;
  for (const auto& row : rows) {
    if (!out.empty()) out += '\n';
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width(row[i]), ' ');
      out += (i == 0 ? "" : "  ") + (right[i] ? blanks + row[i] : row[i] + blanks);
    }
    out.erase(out.find_last_not_of(' ') + 1);
  }
  return out;
}

std::string wrap(std::string_view text, std::size_t columns, std::optional<std::size_t> hang) {
  if (columns == 0) return std::string(text);
  std::string out;
  for (std::size_t at = 0; at <= text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    out += width(line) <= columns ? std::string(line) : wrap_line(line, columns, hang);
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return out;
}

std::size_t utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto length = static_cast<unsigned char>(text[at]) < 0x80 ? 1 : utf8_length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (const auto length = utf8_length(text); length > 0) {
      out += text.substr(0, length);
      text.remove_prefix(length);
    } else {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

bool matches(std::string_view name, std::string_view pattern) {
  if (pattern.find('*') == std::string_view::npos) return name.find(pattern) != std::string_view::npos;
  return glob(name, pattern);
}

bool is_path(std::string_view text, std::string_view ending) {
  return text.find('/') != text.npos || text.ends_with(ending);
}

/// Whether `word` is in it between characters that are no letter or digit.
static bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const auto end = at + word.size();
    if ((at == 0 || !is_part(text[at - 1])) && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

bool has_words(std::string_view text, std::string_view phrase) {
  for (std::size_t at = 0; at < phrase.size();) {
    const auto end = std::min(phrase.find(' ', at), phrase.size());
    if (!has_word(text, phrase.substr(at, end - at))) return false;
    at = end + 1;
  }
  return true;
}

}  // namespace trireme::text
