#!/usr/bin/env python3
"""Makes tests/data/testdata/chat_template_goldens.json: what transformers and Jinja2 make of chat templates.

    python3 tests/peers/make_chat_template_goldens.py

Needs transformers and jinja2. The templates of tests/data/testdata/chat_templates with the conversations
below, and features of the language by themselves. An error is kept as true: its words are not compared.
"""
import json
import os
import pathlib
import time

os.environ["TZ"] = "UTC"
time.tzset()
import chat_template_peer  # noqa: E402

TESTDATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "testdata"
NOW = 1_700_000_000

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The <weather> & \"more\", é.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "where": {"type": "object", "properties": {"lat": {"type": ["number", "null"]}}}}},
    "return": {"type": "string"}}}]
CHATS = {
    "one": [{"role": "user", "content": " What is 2+2? "}],
    "turns": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Hello!\n"},
              {"role": "user", "content": "Wie heißt du?\u2028"}, {"role": "assistant", "content": "Ünï 日本 🙂"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"},
               {"role": "assistant", "content": "Hello"}],
    "thinking": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA"},
                 {"role": "user", "content": "b"},
                 {"role": "assistant", "content": "B", "reasoning_content": "so\n"}],
    "calls": [{"role": "user", "content": "Weather?"},
              {"role": "assistant", "content": "", "tool_calls": [
                  {"id": "abc123456", "type": "function", "function": {
                      "name": "weather", "arguments": {"city": "Köln", "days": [1, 2.5], "x": None, "y": True}}}]},
              {"role": "tool", "tool_call_id": "abc123456", "content": "{\"t\": 20}"},
              {"role": "tool", "tool_call_id": "abc123456", "content": "sunny"},
              {"role": "assistant", "content": "20 degrees"}],
    "parts": [{"role": "system", "content": "S"},
              {"role": "user", "content": [{"type": "text", "text": " x "}, {"type": "image"}]}],
    "out_of_turn": [{"role": "assistant", "content": "me first"}],
    "empty": [],
}
VARIABLES = {"calls": [{"tools": TOOLS}], "turns": [{}, {"tools": TOOLS}],
             "thinking": [{"enable_thinking": False}, {}]}

M = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
     {"role": "user", "content": "Bye"}]
V = {"n": 7, "x": 1.5, "s": "Straße ÀB", "l": [3, 1, 2], "d": {"b": 1, "A": [None, True], "c": "z"}, "e": "",
     "people": [{"name": "Bo", "age": 3, "tag": {"k": "b"}}, {"name": "al", "age": 5, "tag": {"k": "a"}}],
     "text": "one\n two\r\nthree\n", "null": None}

# A template each.
FEATURES = r"""
a {{ n }} {{ x }} {{ s }} {{ l }} {{ d }} {{ null }} {{ true }} {{ missing }}|
{{ [1, 'a', "it's", 'q"', "b'o\"th", '\\ \n \t \x07 é \u200b', none, (), (1,), (1, 2), {}, {1: 'a', none: 2.0}] }}
{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 123456789.125 }} {{ -0.0 }} {{ 1e300 * 1e10 }} {{ 5e-324 }} {{ 2.5e10 }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 1 - 2 - 3 }} {{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 100 // 7 % 5 }} {{ +3 }} {{ - -3 }}
{{ 'a' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ 'a' * -1 }}| {{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ true + true }}
{{ 1 ~ 'a' ~ none ~ 2.0 ~ [1] ~ missing }} {{ 1 ~ 2 + 3 if false else 'x' }} {{ 'a' ~ 2 * 3 }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ [1, 2] == [1, 2] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }} {{ none == missing }} {{ missing == other }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 'Z' < 'a' }} {{ [1, 2] < [1, 3] }} {{ 1 <= 1.0 }} {{ 2 >= 3 }} {{ 'é' > 'z' }} {{ 1 != 2 }}
{{ 'a' in 'abc' }} {{ 1 in l }} {{ 'b' in d }} {{ 9 not in l }} {{ '' in '' }} {{ none in [none] }} {{ 1 in missing }} {{ not 1 in l }}
{{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ not '' }} {{ not missing }} {{ 1 and 0 or 3 }} {{ not false and false }}
{{ 'y' if n > 5 else 'n' }} {{ 'y' if n > 50 }}| {{ 1 if 0 else 2 if 0 else 3 }} {{ ('a' if true else 'b') ~ 'c' }}
{{ s[0] }} {{ s[-1] }} {{ s[4] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[:-2] }} {{ s[::2] }} {{ s[-3:] }} {{ s[10:1:-3] }} {{ s[99:] }}|
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[:2] }} {{ l[-100:100] }} {{ (1, 2, 3)[1:] }} {{ l[5] }}| {{ l['a'] }}| {{ l[true] }} {{ l[none] }}|
{{ d.b }} {{ d['b'] }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 3) }} {{ d.A[1] }} {{ d.A.0 }} {{ d.q }}| {{ d['q'] }}| {{ d[1] }}|
{{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d | list }} {{ d | length }} {{ d | items | list }} {{ d.items() | length }}
{% for k, v in d.items() %}{{ loop.index }}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for (k, v) in [(1, 2), [3, 4], 'ab'] %}{{ k }}{{ v }}{% endfor %}
{% for c in 'héß' %}[{{ c }}]{% endfor %}{% for x in missing %}x{% else %}none{% endfor %}{% for x in [] %}x{% else %}empty{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}-{% endfor %}{% for x in l if x > 9 %}{{ x }}{% else %}nothing{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }} {{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }};{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for i in range(2) %}{% for j in range(2) %}{{ i }}{{ j }}{{ loop.index }}{% if j == 0 %}{% continue %}{% endif %};{% endfor %}{{ loop.index }}{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in range(5) if not ns.stop %}{{ x }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in range(5) if not ns.stop %}{{ x }}{{ loop.last }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(10)[3] }} {{ range(10)[-1] }} {{ range(3) | length }}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}
{% if n %}{% set y = 5 %}{% endif %}{{ y }}{% set n = n + 1 %}{{ n }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, %}{{ c }}{% set (p, q) = 'xy' %}{{ p }}{{ q }}
{% set ns = namespace(a=1, b=[]) %}{% for i in l %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns['a'] }}{{ ns.c is defined }}
{% set ns = namespace({'k': 1}, j=2) %}{{ ns.k }}{{ ns.j }}{% set ns.k, z = 8, 9 %}{{ ns.k }}{{ z }}
{% set b %} x {{ n }}{% set inner = 3 %}
 {% endset %}[{{ b }}]{{ inner }}{{ b is string }}{{ b | length }}
{% set b | trim | upper %} abc {% endset %}[{{ b }}]{% set c | replace('a', 'b') %}aa{% endset %}{{ c }}
{% macro f(a, b=2, c=b) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c=4) }}{{ f() }}{{ f(b=1, a=0) }}{{ f(1) ~ 'x' }}{{ f(1) is string }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f() %}{{ g() }}{{ later }}{% endmacro %}{% macro g() %}G{% endmacro %}{% set later = 'L' %}{{ f() }}{% set later = 'M' %}{{ f() }}
{% macro f(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ f(1) }}{{ y }}{% for i in l %}{{ f(i) }}{% endfor %}{{ f is callable }}{{ f is defined }}
{% macro f(x) %}{{ x is defined }}{{ x }}{% endmacro %}{{ f() }}{{ f(none) }}{{ f(missing) }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c d'.split(' ', 1) }} {{ 'a b  c '.split(none, 1) }} {{ 'abc'.split('x') }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ 'a b c'.rsplit() }} {{ 'ab'.split('ab') }} {{ text.splitlines() }} {{ text.splitlines(true) }}
[{{ ' a '.strip() }}] [{{ 'xxaxx'.strip('x') }}] [{{ ' a '.lstrip() }}] [{{ ' a '.rstrip() }}] [{{ '  a b '.lstrip(' a') }}] [{{ 'éaé'.strip('é') }}] [{{ '\u2003a\u00a0'.strip() }}]
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('') }} {{ 'abc'.endswith('b', 0, 2) }}
{{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '.') }} {{ 'héé'.replace('é', 'e') }} {{ 'aaa'.replace('aa', 'b') }}
{{ 'héllo'.find('l') }} {{ 'hello'.find('x') }} {{ 'hello'.rfind('l') }} {{ 'hello'.index('e') }} {{ 'hello'.count('l') }} {{ 'aaa'.count('aa') }} {{ 'hello'.find('l', 3) }} {{ 'abc'.count('') }} {{ 'abc'.find('', 5) }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ "they're bill's".title() }} {{ "they're bill's-x (y)" | title }} {{ 'éa' | capitalize }} {{ 'ßa'.capitalize() }}
{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ ''.isalpha() }} {{ ' \t'.isspace() }} {{ 'aB'.islower() }} {{ 'AB1'.isupper() }} {{ '1'.isupper() }} {{ '٣'.isdigit() }} {{ '²'.isdigit() }} {{ '²'.isdecimal() }}
{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }} {{ '-'.join(['a', 'b']) }} {{ ','.join('abc') }}
{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ 'x'.join([]) }}|{{ d.copy() == d }} {{ (1, 2).count(1) }}
{{ d | tojson }} {{ l | tojson }} {{ s | tojson }} {{ none | tojson }} {{ true | tojson }} {{ 1.5 | tojson }} {{ (1, 2) | tojson }} {{ '<&>\'"' | tojson }} {{ 1e400 | tojson }}
{{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [[]] | tojson(indent=1) }} {{ l | tojson(indent=0) }}
{{ d | tojson(ensure_ascii=true) }} {{ 'é🙂\x7f\x01\b\f' | tojson(ensure_ascii=true) }} {{ 'é🙂\x7f\x01\b\f\u2028' | tojson }} {{ d | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(indent='\t') }}
{{ {1: 'a', 2.5: 'b', true: 'c', none: 'd'} | tojson }} {{ {'a': {'b': [1, {'c': none}]}} | tojson(indent=3, separators=(', ', ' : ')) }}
[{{ '  x ' | trim }}] [{{ 'xyx' | trim('x') }}] [{{ 5 | trim }}] [{{ missing | trim }}] [{{ none | trim }}] {{ 'abc' | length }} {{ l | count }} {{ missing | length }} {{ '日本' | length }}
{{ missing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ none | d('e', boolean=true) }} {{ d.q | default(default_value='f') }} {{ missing | default }}|
{{ l | join }} {{ l | join(', ') }} {{ people | join('-', attribute='name') }} {{ people | join(', ', 'age') }} {{ 'abc' | join('.') }} {{ [none, 1.0, 'a'] | join(' ') }} {{ missing | join(',') }}|
{{ l | sort }} {{ l | sort(reverse=true) }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A', 'c'] | sort(case_sensitive=true) }} {{ people | sort(attribute='age', reverse=true) | map(attribute='name') | list }} {{ people | sort(attribute='tag.k') | map(attribute='name') | join }}
{{ d | dictsort }} {{ d | dictsort(true) }} {{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'a': 2, 'b': 1} | dictsort(reverse=true) }} {% for k, v in {'z': 1, 'y': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='tag.k') | join(',') }} {{ people | map(attribute='q', default='none') | list }} {{ ['a', 'b'] | map('upper') | list }} {{ [' a'] | map('trim') | list }} {{ [[1, 2]] | map('join', '-') | list }} {{ [[4, 5]] | map(attribute=1) | list }}
{{ people | selectattr('age', 'gt', 4) | map(attribute='name') | list }} {{ people | selectattr('name') | list | length }} {{ people | rejectattr('age', '==', 3) | list | length }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ people | selectattr('nick', 'defined') | list }}
{{ [0, 1, '', 'a'] | select | list }} {{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ l | select('in', [1, 2]) | list }} {{ [1, none] | reject('none') | list }} {{ l | select('>=', 2) | list }}
{{ null | map('upper') | list }} {{ none | selectattr('a') | list }} {{ false | reject('none') | list }} {{ {range(2): 1}[range(2)] }} {{ 0 | select | list }}
{{ [1, 1.0, true, 'a', 'A', 2] | unique | list }} {{ l | min }} {{ l | max }} {{ [] | max }}| {{ l | sum }} {{ people | sum(attribute='age') }} {{ [0.5, 1] | sum(start=2) }} {{ ['b', 'A'] | min }} {{ people | max(attribute='age') }}
{{ l | first }} {{ l | last }} {{ '' | first }}| {{ 'ab' | last }} {{ l | reverse | list }} {{ 'añb' | reverse }} {{ d | first }} {{ [] | last }}| {{ 'héj' | list }}
{{ '42' | int }} {{ ' 4_2 ' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(9) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ none | int }} {{ 'ff' | int(base=16) }} {{ true | int }} {{ '1e2' | int }} {{ '-7' | int }}
{{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ '1e3' | float }} {{ 'inf' | float }} {{ -3 | abs }} {{ 2.5 | abs }} {{ true | abs }} {{ '-1_0.5' | float }} {{ none | float(2.0) }}
{{ 'ab\ncd\n\nef' | indent }}| {{ 'a\nb' | indent(2, true) }} {{ 'a\n\nb' | indent(2, blank=true) }} {{ 'a\nb' | indent('> ', first=true) }} {{ 'a' | indent }}
{{ 'Hello' | upper }} {{ 'Hello' | lower }} {{ 'aXa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 1) }} {{ 5 | replace('5', 6) }} {{ none | upper }} {{ 5 | string }} {{ 5 | string is string }} {{ 'x' | safe }} {{ d | string }} {{ true | lower }}
{{ 1 is defined }} {{ missing is defined }} {{ missing is undefined }} {{ none is none }} {{ d.q is none }} {{ none is not none }} {{ 'a' is string }} {{ 1 is string }} {{ d is mapping }} {{ l is mapping }}
{{ l is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ missing is iterable }} {{ none is iterable }} {{ d is iterable }} {{ l is sequence }} {{ 'a' is sequence }} {{ d is sequence }} {{ d.items() is sequence }} {{ missing is sequence }} {{ range(2) is sequence }}
{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ true is boolean }} {{ 1 is boolean }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ 1 is float }} {{ true is number }} {{ 1.5 is number }} {{ '1' is number }}
{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 'a' is in 'abc' }} {{ 2 is eq 2 }} {{ 2 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is ge 2 }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ none is sameas none }} {{ 1 is sameas true }} {{ raise_exception is callable }}
{{ [1, 2, 3,] }} {{ {'a': 1, 'b': [1, {'c': 2}],} }} {{ (1, 2,) }} {{ () }} {{ 1, 2 }} {{ {'a': 1, 'a': 2} }} {{ {}.get('a') }} {{ [[], {}] | length }}
{{ dict(a=1, b='x') }} {{ dict({'a': 1}, b=2) }} {{ dict([('k', 'v')]) }} {{ dict() }} {{ dict(a=1) | length }}
{{ 'a' 'b' "c" }} {{ "\"" }} {{ '\'' }} {{ '\u00e9\x41\101\U0001F642' }} {{ '\d\q' }} {{ 'a\
b' }} {{ 1_000 }} {{ 1_0.5e1_0 }} {{ 1e3 }}
  {% if true %}  
  a  
  {% endif %}  
 b {%- if true -%} c {% endif +%}
  d{# comment #}
  {#- comment -#}  
  e {{- ' f' -}}  
 g
{% if true %}
{%+ if true %} x
{%- endif %}
{% endif %}
{{ n }}
{{ n -}}
 z
	{% set q = 1 %}	
  {%- set q = 2 +%}
{% raw %}{{ not }} {% a %}
{# b #}{% endraw %}
x {%- raw -%}  y  {%- endraw -%}  z
  {% raw %}
  w
  {% endraw %}
{#{{ a }}{% b %}#}1{#-#}2{# a -#} 3{# x +#}
4
{{ '%}' }}{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}{% if '%}' == '%}' %}ok{% endif %}{{ "{{" }} { { } } {x} { %
{% if 0 %}a{% elif '' %}b{% elif none %}c{% else %}d{% endif %}{% if n == 7 %}A{% elif n %}B{% endif %}{% if false %}x{% endif %}
{% if n is defined and n > 3 and not (l is none) %}yes{% endif %}{% if 'b' in d and d['b'] is not none %}yes{% endif %}
{% for m in messages %}{% if m.role == 'user' %}U{% generation %}{{ m.content }}é{% endgeneration %}{% endif %}{% endfor %}{% generation %}{% endgeneration %}
{% generation %}{% set inner = 1 %}{{ inner }}日本{% endgeneration %}{{ inner }}{% if true %}{% generation %}x{% for i in l %}{{ i }}{% endfor %}{% endgeneration %}{% endif %}
{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %j %%') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('') }}| {{ strftime_now('é') }}
{{ messages[0].role }}{{ messages[-1]['content'] }}{{ messages | length }}{{ messages[0] }}{{ messages[1:] | map(attribute='role') | join(',') }}{{ tools }}{{ documents }}{{ add_generation_prompt }}
{{ text }}|{{ text | trim }}|{{ e }}|{{ e or 'fallback' }}|{{ (e or 'a') + 'b' }}
{{ d | map('upper') | list }} {{ d.items() | map('first') | list }} {{ l | map('string') | join }} {{ 'ab' | map('upper') | join }} {{ l | map('float') | list }}
{% set m = messages | map(attribute='role') | list %}{{ m }}{{ m[::2] }}{{ m is iterable and m is not string }}{{ 'user' in m }}{{ m | unique | join('/') }}
{% set t = (1, 'a') %}{{ t[0] }}{{ t.1 }}{{ t | length }}{{ t | tojson }}{{ t == (1, 'a') }}{{ (1, 'a') in [t] }}{{ {t: 5}[t] }}
{{ x.__class__ }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ missing + 1 }}
{{ missing.attribute }}
{{ missing['item'] }}
{{ missing() }}
{{ -missing }}
{{ missing < 1 }}
{{ 'a' < 1 }}
{{ none < 1 }}
{{ d.q.r }}
{{ none.x.y }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1 in 5 }}
{{ 1 in 'a' }}
{{ missing in 'a' }}
{{ [] in {} }}
{{ {[]: 1} }}
{{ null[1:] }}
{{ n[1:] }}
{{ d[1:] }}
{{ l[1.5] }}{{ l[missing] }}{{ d[l] }}|{{ d.__class__ }}
{{ missing[1:] }}
{{ l['a':] }}
{{ l[::0] }}
{{ 5 | length }}
{{ none | join }}
{{ none | first }}
{{ missing | tojson }}
{{ [missing] | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ 5 | items | list }}
{{ 'a' | dictsort }}
{{ [1, 'a'] | sort }}
{{ 'a'.index('b') }}
{{ 'a'.split('') }}
{{ 'a'.nothing() }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ 'a'.split(1) }}
{{ 'a'.startswith(1) }}
{{ ','.join([1]) }}
{{ raise_exception('no ' ~ n) }}
{{ range(1000000) }}
{{ range(0, 1, 0) }}
{{ 'a'() }}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% set a, b = 1 %}
{% set d.b = 1 %}
{% set q.b = 1 %}
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a) %}{% endmacro %}{{ f(b=1) }}
{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}
{% set ns = namespace(_a=1) %}
{% if %}a{% endif %}
{% if 1 %}
{% for x in l %}{% endif %}
{% endfor %}
{% unknown %}
{% break %}
{% set 1 = 2 %}
{% set true = 2 %}
{{ 1 +
{{ 1 }
{{ (1 }}
{{ [1) }}
{{ 'a }}
{{ }}
{{ 1 2 }}
{{ a.'b' }}
{{ a | }}
{{ a is }}
{{ a | nofilter }}
{{ a is notest }}
{# open
{% raw %} open
{{ $ }}
{% macro f(a=1, b) %}{% endmacro %}
{{ f(a=1, 2) }}
{% for loop in l %}{{ loop }}{% endfor %}
""".strip("\n")


def features():
    """The templates of FEATURES: a line each, but for those in which a line ends early."""
    # What spans lines is told by its first words, and ends before the next line that is one of these.
    multi = {"{% set b %} x": 2, "{{ 'a' 'b' \"c\" }}": 2, "  {% if true %}  ": 8, "{% if true %}": 5,
             "{{ n }}": 3, "\t{% set q": 2, "{% raw %}{{ not": 6, "{#{{ a }}": 2}
    lines = FEATURES.split("\n")
    while lines:
        exact = lines[0] if lines[0] in multi else next((m for m in multi if len(m) > 12 and lines[0].startswith(m)), "")
        count = multi.get(exact, 1)
        yield "\n".join(lines[:count])
        lines = lines[count:]


def cases():
    for path in sorted((TESTDATA / "chat_templates").glob("*.jinja")):
        for chat in CHATS:
            for i, variables in enumerate(VARIABLES.get(chat, [{}])):
                yield {"file": path.name, "chat": chat, "add_generation_prompt": i == 0,
                       "variables": {"bos_token": "<s>", "eos_token": "</s>", **variables}}
    for template in features():
        yield {"template": template}


def main():
    goldens = {"now": NOW, "chats": CHATS, "messages": M, "variables": V, "cases": []}
    for case in cases():
        result = chat_template_peer.render({
            "template": case.get("template") or (TESTDATA / "chat_templates" / case["file"]).read_text(),
            "messages": CHATS[case["chat"]] if "chat" in case else M, "variables": case.get("variables", V),
            "add_generation_prompt": case.get("add_generation_prompt", False), "now": NOW})
        if "error" in result:
            result = {"error": True}
        elif not result["generation"]:
            del result["generation"]
        goldens["cases"].append({**case, **result})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in goldens.pop("cases"))
    head = json.dumps(goldens, ensure_ascii=False)[:-1]
    (TESTDATA / "chat_template_goldens.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')
    print(f"{lines.count(chr(10)) + 1} cases")


if __name__ == "__main__":
    main()
