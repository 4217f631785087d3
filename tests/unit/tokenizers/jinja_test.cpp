// Templates against the texts that Python's Jinja makes of them in the environment of transformers 5.24.
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tokenizers/jinja/template.h"

namespace trireme::jinja {
namespace {

struct TemplateCase {
  std::string source, expected;
};

const auto kVariables = nlohmann::ordered_json::parse(R"({
  "x": "a b", "y": [3, 1, 2], "n": null, "u": "é🎉z", "html": "<a href='x'>&</a>",
  "d": {"a": 1, "b": [1, {"c": 2}], "items": "I"},
  "m": [{"r": "u", "c": "Hi", "k": 3}, {"r": "a", "c": "yo", "k": 1}, {"r": "u", "c": "", "k": 2}]})");

/// Each has the text that Python gives.
const std::vector<TemplateCase> kTexts{
    {R"({{ [x, 1.5, none, true] }}; {{ {'a': (1,), 2: {}} }}; {{ ['it\'s', '"'] }}; {{ d }}; {{ 1e16 }}; {{ 1.5e-5 }})",
     R"(['a b', 1.5, None, True]; {'a': (1,), 2: {}}; ["it's", '"']; {'a': 1, 'b': [1, {'c': 2}], 'items': 'I'}; 1e+16; 1.5e-05)"},
    {R"({{ -7 % 3 }}; {{ 10 - 2 - 3 }}; {{ 1 ~ 2 * 3 }}; {{ 'ab' * 2 }}; {{ [1] + [3] }}; {{ true == 1.0 }}; {{ 'b' not in x }}; {{ 0 or 'x' }}; {{ '' and 1 }}; {{ not x is string }}; {{ 1 if n }}; {{ 'A' ~ 'B'|lower }}; {{ undef == none }}; {{ 1 in undef }})",
     "2; 5; 16; abab; [1, 3]; True; False; x; ; False; ; Ab; False; False"},
    {R"({{ y[-1] }}; {{ y[::-1] }}; {{ y[5] }}; {{ u[1] }}; {{ u[::-1] }}; {{ u[-2:] }}; {{ u|length }}; {{ d.b[1].c }}; {{ d.zz }}; {{ d['items'] }}; {{ m.0.c }})",
     R"(2; [2, 1, 3]; ; 🎉; z🎉é; 🎉z; 3; 2; ; I; Hi)"},
    {R"({{ x.upper() }}; {{ 'ΑΣ'.lower() }}; {{ "they're".title() }}; {{ 'xyaxy'.strip('yx') }}; {{ ' a  b c '.split() }}; {{ 'a,b,c'.split(',', 1) }}; {{ 'aXb'.replace('X', '-') }}; {{ '<{}>'.format(1) }})",
     R"(A B; ας; They'Re; a; ['a', 'b', 'c']; ['a', 'b,c']; a-b; <1>)"},
    {R"({{ 'abc'.startswith('a') }}; {{ d.get('zz') }}; {{ d.get('zz', 5) }}; {{ d.keys()|list }}; {{ x['upper']() }})",
     "True; None; 5; ['a', 'b', 'items']; A B"},
    {R"({{ d|tojson }}; {{ {'b': 'é<', 2: [1e16, true]}|tojson(ensure_ascii=true) }}; {{ [1, {}]|tojson(indent=2) }})",
     "{\"a\": 1, \"b\": [1, {\"c\": 2}], \"items\": \"I\"}; {\"b\": \"\\u00e9<\", \"2\": [1e+16, true]}; [\n  1,\n  "
     "{}\n]"},
    {R"({{ undef|default('D') }}; {{ n|d('D') }}; {{ n|d('D', true) }}; {{ y|join('-') }}; {{ ['b', 'A']|sort }}; {{ m|sort(attribute='k')|map(attribute='k')|list }}; {{ y|min }}; {{ ['a', 'A']|unique|list }})",
     R"(D; None; D; 3-1-2; ['A', 'b']; [1, 2, 3]; 1; ['a'])"},
    {R"({{ m|selectattr('r', 'equalto', 'u')|list|length }}; {{ m|rejectattr('c')|map(attribute='k')|list }}; {{ ['A', 'b']|map('lower')|join }}; {{ {'b': 1, 'A': 2}|dictsort }}; {{ 'a\nb\n\nc'|indent(2) }}; {{ '5.7'|int }}; {{ n|trim }}; {{ html|safe + '<' }}; {{ '<' ~ html|safe }})",
     "2; [2]; ab; [('A', 2), ('b', 1)]; a\n  b\n\n  c; 5; None; <a href='x'>&</a>&lt;; <<a href='x'>&</a>"},
    {R"({{ n is none }}; {{ d is mapping }}; {{ x is sequence }}; {{ true is number }}; {{ 1 is in y }}; {{ undef is defined }})",
     "True; True; True; True; True; False"},
    {R"({% for i in y if i > 1 %}{{ loop.index }}{{ loop.last }}{{ loop.previtem }}{{ i }};{% else %}no{% endfor %}{% for i in [] %}{% else %}no{% endfor %})",
     "1False3;2True32;no"},
    {R"({% for i in y %}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}{{ ['+5', '+-5', '++5']|map('int')|list }})",
     "3210;2110;1010;[5, 0, 0]"},
    {R"({% for i in y %}{% if i == 2 %}{% continue %}{% endif %}{% set z = i %}{{ z }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}{{ z }}.)",
     "31."},
    {R"({% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for c in u %}{{ c }}.{% endfor %})",
     "a=1;b=[1, {'c': 2}];items=I;é.🎉.z."},
    {R"({% set ns = namespace(z=0) %}{% for i in y %}{% set ns.z = ns.z + i %}{% endfor %}{{ ns.z }}{{ ns.w }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %} hi {{ x }}{% endset %}[{{ c }}]{% filter upper %}abc{% endfilter %})",
     "612[ hi a b]ABC"},
    {R"({% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f() }}{% macro g(n) %}{{ n }}{{ g(n - 1) if n }}{% endmacro %}{{ g(3) }})",
     "1-2-1;1-2-3;-2-;3210"},
    {R"({% if n %}1{% elif not x %}2{% else %}3{% endif %}{{ range(1, 7, 2)|list }}{{ '}}' }})", "3[1, 3, 5]}}"},
    {"  {% if true %}\n  a\n  {% endif %}\n  b\n", "  a\n  b"},
    {"{% for i in y -%}\n {{ i }}\n{%- endfor %}\n.", "312."},
    {"x {# c #}\n a{# d -#}  b\n\n", "x  ab\n"},
    {"  {%+ if true +%} a  {%- endif %} b", "   a b"},
    {"\r\n{{ x }}\r\n\n", "\na b\n"},
};

/// Python refuses most of them too; the words are ours.
const std::vector<TemplateCase> kRefusals{
    {"{{ 1 % 0 }}", "line 1: division by zero"},
    {"{{ x + 1 }}", R"(line 1: + of the types str and int is not supported)"},
    {"{{ undef.a }}", "line 1: 'undef' is undefined"},
    {"{{ y.append(1) }}", R"(line 1: 'append' is not in the list, and no method that is supported)"},
    {"{{ d[[x]].a }}", "line 1: a key of the type list is not in the dict, and no method that is supported"},
    {"{{ [d.get] }}", "line 1: a function in a list or a dict is not supported"},
    {"{{ {d.get: 1} }}", "line 1: a function in a list or a dict is not supported"},
    {"{{ x|nope }}", R"(line 1: the filter "nope" is not supported)"},
    {"{{ x is nope }}", R"(line 1: the test "nope" is not supported)"},
    {"{{ y|map('string')|tojson }}", R"(line 1: a generator has no JSON: use the filter list)"},
    {"{% for a, b in [[1]] %}{% endfor %}", R"(line 1: 1 values cannot be assigned to 2 names)"},
    {R"({% macro f(a) %}{% endmacro %}{{ f(1, 2) }})", R"(line 1: the macro f has no parameter for its argument 2)"},
    {"{{ range(1000000) }}", R"(line 1: a range has more than 100000 items)"},
    {"{{ 2 ** 3 }}", R"(line 1: the operator ** is not supported)"},
    {"{% if x %}", R"(line 1: the template ends where a tag 'endif' is expected)"},
    {"{% break %}", R"(line 1: the tag 'break' is not supported, or has no place here)"},
    {"\n\n{{ raise_exception('Roles ' ~ 'alternate') }}", "line 3: Roles alternate"},
};

std::string text_or_error(const std::string& source) {
  try {
    return Template(source).render(kVariables).text;
  } catch (const DataError& error) {
    return error.what();
  }
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Jinja, GivesTheTextsOfPython) {
  for (const auto& [source, expected] : kTexts) EXPECT_EQ(text_or_error(source), expected) << source;
}

TEST(Jinja, RefusesWhatPythonRefuses) {
  for (const auto& [source, expected] : kRefusals) EXPECT_EQ(text_or_error(source), expected) << source;
}

TEST(Jinja, MarksWhatIsGenerated) {
  const auto rendered =
      Template("é{% for i in y %}{{ i }}{% generation %}é{{ i }}{% endgeneration %}{% endfor %}").render(kVariables);
  EXPECT_EQ(rendered.text, "é3é31é12é2");
  EXPECT_TRUE(Template("{% if x %}{%- generation -%}{% endgeneration %}{% endif %}").has_generation());
  EXPECT_FALSE(Template("{# {% generation %} #}{{ '{% generation %}' }}").has_generation());
  EXPECT_EQ(rendered.generated, (std::vector<std::pair<std::size_t, std::size_t>>{{3, 6}, {7, 10}, {11, 14}}));
}

TEST(Jinja, LimitsTemplatesOfStrangers) {
  const auto is_limited = [](const std::string& source, const std::string& words) {
    EXPECT_NE(text_or_error(source).find(words), std::string::npos)
        << source.substr(0, 80) << ": " << text_or_error(source).substr(0, 200);
  };
  is_limited("{{ " + repeated("(", 5000) + repeated(")", 5000) + " }}", "nests more than");
  is_limited("{{ 1" + repeated(" + 1", 5000) + " }}", "nests more than");
  is_limited(repeated("{% if x %}", 5000), "nests more than");
  is_limited("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels of calls");
  is_limited("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "steps");
  is_limited("{% set ns = namespace(a=x) %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}", "64 MiB");
  is_limited("{% set ns = namespace(a=x) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}",
             "200 levels");
  is_limited(
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(99) %}{% set ns.a, ns.b = [ns.a, ns.a], [ns.b, ns.b] "
      "%}{% endfor %}{{ ns.a == ns.b }}",
      "steps");
  is_limited("{{ x * 99999999999 }}", "64 MiB");
  is_limited("{% set ns = namespace(d={}) %}{% for i in range(100000) %}{% set ns.d = {'a': ns.d.get} %}{% endfor %}",
             "a function in");
  is_limited("{{ " + repeated("a", 2000) + " }}", "a name has more than");
  for (const std::string body : {"{% set n = namespace(x=b[:]) %}", "{{ b|select|first }}", "{{ b|int }}",
                                 "{% for j in b %}{% break %}{% endfor %}", "{{ t ~ 'b' in t }}"})
    is_limited(
        "{% set b = range(100000) %}{% set t = 'a' * 999999 %}{% for i in range(100000) %}" + body + "{% endfor %}",
        "steps");
}

TEST(Jinja, ThereIsATimeOnlyWhereOneIsGiven) {
  const Template dated("{{ strftime_now('%Y') if strftime_now is defined else 'no day' }}");
  EXPECT_EQ(dated.render(kVariables).text, "no day");
  EXPECT_EQ(dated.render(kVariables, 200 * 86400).text, "1970");
}

}  // namespace
}  // namespace trireme::jinja
