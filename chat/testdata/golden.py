"""Writes golden.json: what Python's Jinja2, set up as transformers does, makes of templates and conversations.
Needed only to add cases; the tests read the file. Run in this folder: python3 golden.py"""
import datetime
import glob
import json
import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def refuse(msg):
    raise jinja2.exceptions.TemplateError(msg)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = datetime.datetime(2026, 3, 9, 7, 5, 2).strftime
    return env


def render(source, variables):
    try:
        return {"want": environment().from_string(source).render(**variables)}
    except Exception as e:
        return {"error": type(e).__name__}


SNIPPETS = r"""
{{ none }}|{{ true }}|{{ 1.0 }}|{{ 1e16 }}|{{ 1e-5 }}|{{ 0.1 + 0.2 }}|{{ undefined_thing }}|{{ [none, true, 'a\'b', "x\n"] }}
{{ {'a': 1, 'b': [1, 2.5, none], 'c': {'d': '<&>é'}} }}
{{ d | tojson }}
{{ d | tojson(indent=2) }}
{{ d | tojson(indent=4, sort_keys=true) }}
{{ d | tojson(separators=(',', ':')) }}
{{ d | tojson(ensure_ascii=true) }}
{{ big | tojson }} {{ big }} {{ big == big }}
{{ [1.0, 100.0, 1e22, 1.5e-7, 123456789.123] | tojson }}
{{ [] | tojson(indent=1) }}{{ {} | tojson(indent=1) }}{{ [[], {}] | tojson(indent=1) }}
{{ 1 + 2 * 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // -2 }} {{ 7 % -2 }} {{ -7 // 2 }} {{ -7 % 2 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 1 }} {{ [1, [2]] == [1, [2]] }} {{ {'a': 1} == {'a': 1.0} }}
{{ not true or true and false }} {{ not 1 == 2 }} {{ 1 in [1, 2] }} {{ 3 not in [1, 2] }} {{ 'b' in 'abc' }} {{ 'a' in {'a': 1} }}
{{ 'yes' if 1 else 'no' }} {{ 'yes' if 0 }} {{ ('a' if false else 'c') + 'd' }} {{ 'a' if false else 'b' if false else 'c' }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }} {{ 'x' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }}
{{ 'abc'[1] }} {{ 'abc'[-1] }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[::2] }} {{ 'abc'[5:] }} {{ [1, 2, 3][-2:] }} {{ [1, 2, 3][::-1] }} {{ 'héllo'[1:3] }} {{ [1,2,3,4][-1:0:-2] }} {{ 'abc'[-10:2] }}
{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'a,b,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ' a  b '.split() }}|{{ ''.split(',') }}
{{ 'aXbXc'.replace('X', '--') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '.') }} {{ 'abc' | replace('b', 'BB') }}
{{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ 'abc'.upper() }} {{ 'ABC' | lower }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aba'.count('a') }} {{ '-'.join(['a', 'b']) }} {{ '{} {1} {}'.format('x', 'y') }}
{{ '{} {}'.format('x', 'y') }} {{ '{0}{1}{0} {{}}'.format('x', 'y') }} {{ '%s=%d%%' % ('a', 3) }} {{ '{a}'.format(a=1) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'a\nb\n'.splitlines() }} {{ 'abc'.removeprefix('a') }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'Ab'.isalpha() }}
{{ d.items() | map('last') | list }} {{ d.keys() | list }} {{ d.values() | list | length }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.nope is defined }} {{ d['nope'] is undefined }}
{% for k, v in d.items() %}{{ loop.index }}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}
{% for k, v in d | dictsort %}{{ k }}{% endfor %}
{% for c in 'héy' %}[{{ c }}]{% endfor %}
{% for i in range(5) if i % 2 == 0 %}{{ i }}{% else %}none{% endfor %}{% for i in [] %}{% else %}empty{% endfor %}
{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i == 6 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}
{% for i in range(4) %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% set x = 0 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
{% for i in range(3) %}{% if loop.first %}{% set y = 'set' %}{% endif %}[{{ y }}]{% endfor %}
{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}
{% macro m(a, b='x', c=[1, 2]) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(1, 2, 3) }} {{ m() }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro wrap(x) %}<{{ x }}>{{ caller('z') }}</{{ x }}>{% endmacro %}{% call(q) wrap('b') %}in {{ q }}{% endcall %}
{% filter upper %}abc {{ 'd' }}{% endfilter %} {% filter replace('a', 'b') | upper %}aaa{% endfilter %}
{% set block %}text {{ 1 + 1 }}{% endset %}[{{ block }}]
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t | list }}
{% raw %}{{ not rendered }} {% if %}{% endraw %}!
{# comment #}a{#- c -#}  b
{% generation %}x{{ 1 }}{% endgeneration %}y
  {% if true %}  indented
  line
  {% endif %}  after
{% if true %}
a
{%- endif %}

b {%- if true %} c {% endif -%}   d
{%+ if true %} kept{% endif %}
{{- 'a' -}} b {{ 'c' }}
a
{{ 'b' }}
c
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ msgs | sort(attribute='n') | map(attribute='n') | list }}
{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ 'abc' | length }} {{ [1, 1, 2] | unique | list }} {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 2, 3] | sum }} {{ [1, 3, 2] | max }} {{ [2, 1] | min }}
{{ msgs | selectattr('n', 'equalto', 2) | map(attribute='role') | list }} {{ msgs | rejectattr('n', 'gt', 1) | list | length }} {{ [1, 0, 2] | select | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ msgs | selectattr('role') | list | length }}
{{ ['a', 'b'] | map('upper') | join(', ') }} {{ msgs | join('+', attribute='n') }} {{ [1, 2] | join }}
{{ x | default('def') }} {{ none | default('def') }} {{ '' | default('def', true) }} {{ none | d('e', boolean=true) }}
{{ '12' | int }} {{ 'x' | int }} {{ '3.7' | int }} {{ '1.5' | float }} {{ 2.567 | round(1) }} {{ 2.5 | round }} {{ -3 | abs }} {{ 5 | string }} {{ 1.9 | int }}
{{ ' a ' | trim }}| {{ 'a b c' | wordcount }} {{ 'a\nb' | indent(2) }} {{ 'a\nb' | indent(2, true) }} {{ '<a&"' | e }} {{ [1, 2, 3] | batch(2) | list }} {{ 'abC' | title }} {{ 'abc' | capitalize }}
{{ 1 is odd }} {{ 2 is even }} {{ 'a' is string }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1.0 is float }} {{ d is mapping }} {{ [1] is sequence }} {{ 'a' is sequence }} {{ d is iterable }} {{ none is none }} {{ 4 is divisibleby 2 }} {{ 1 is eq 1 }} {{ 'A' is upper }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ m is undefined }} {{ 1 is not none }} {{ 1 is in [1] }} {{ zz is iterable }} {{ zz is sequence }} {{ true is boolean }} {{ range is callable }}
{{ not x is defined }} {{ x is not defined and true }} {{ 1 + 1 is odd }} {{ -1 | abs }} {{ (1, 2)[0] }} {{ (1, 2) | list }} {{ () | list }}
{{ zz.attr }}
{{ none.attr is undefined }} {{ d.a.zz is undefined }}
{{ zz + 'a' }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 1 < 'a' }}
{{ 1 // 0 }}
{{ raise_exception('no!') }}
{{ none | length }}
{{ 'x' | nofilter }}
{{ 'x' is notest }}
{% for x in none %}{% endfor %}
{% if true %}
{{ (1 }}
{% unknown %}
{{ joiner('|') is callable }} {% set j = joiner(', ') %}{% for i in [1, 2, 3] %}{{ j() }}{{ i }}{% endfor %}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}
{{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }} {{ dict({'a': 1}, b=2) | tojson }} {% set n = namespace(**{'q': 5}) %}{{ n.q }} {{ {1: 'a'}[1] }} {{ {'a': {'b': {}}} }}
{{ "tab\there \\ \x41 \u00e9 'q' \d" }} {{ 'it' 's' }} {{ "it's" | tojson }} {{ ["it's", 'q"', 'both\'"'] }}
{{ 1_000 }} {{ 'a.b' }} {{ 10 % 4 * 2 }} {{ 2 * 3 % 4 }} {{ 10 - 2 - 3 }} {{ 'a' ~ 'b' + 'c' }} {{ 1 ~ 2 + 3 }}
{{ range(3) | list }} {{ range(1, 7, 2) | list }} {{ range(3, 0, -1) | list }} {{ 'a' in ['a'] and 'b' not in ['a'] }}
{{ msgs[0].role }} {{ msgs[0]['role'] }} {{ msgs[-1].n }} {{ msgs[9] is defined }} {{ (msgs | first).role }} {{ msgs[1:] | length }} {{ msgs[0] == msgs[0] }} {{ msgs[-1] == msgs[0] }}
{{ 'héé'.upper() }} {{ 'É' | lower }} {{ '\u2028' | tojson }} {{ '\x7f\x01' | tojson }} {{ 'a/b' | tojson }}
{%- for m in msgs -%} {%- if loop.previtem is defined -%} p {%- endif -%} {{ m.n }} {%- endfor -%} end
{% if d.a == 1 and d['b'] is mapping %}ok{% elif d %}elif{% else %}else{% endif %}
{{ [1, 2, 3] | map('string') | join }} {{ 'a' if x is defined else 'b' }} {{ [x, 1] | select('defined') | list }}
{{ 3 | float }} {{ 1e3 | int }} {{ 5 == 5.0 }} {{ 1.0 | tojson }} {{ 0.1 | tojson }} {{ true | tojson }} {{ none | tojson }} {{ 'é' | tojson }}
{% for a, b in d.items() if a != 'b' %}{{ loop.index }}/{{ loop.length }} {{ a }}={{ b }}{{ ', ' if not loop.last }}{% else %}none{% endfor %}
{% for a, b in [] if a %}x{% else %}empty{% endfor %} {% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %} {% for x in [1, 2, 3] if x is odd %}{{ loop.revindex }}{{ x }}{% endfor %}
{% for i in [1] if loop.index0 == 0 %}{{ i }}{% endfor %}
{% set b = 9 %}{% for a, b in [[1, 0], [2, 5], [3, 6]] if b %}{{ loop.previtem[0] if loop.previtem is defined }}{{ a }}{{ b }}{% if a == 2 %}{% continue %}{% endif %}!{% endfor %}{{ b }}
{{ '%s|%5s|%-5s|%.2s' | format('abc', 'de', 'f', 'ghi') }} {{ '%d|%5d|%05d|%+d|%-4d|% d' | format(3, 42, -42, 7, 8, 9) }} {{ '%x|%X|%#x|%o|%04x' | format(255, 255, 255, 8, 10) }}
{{ '%f|%.2f|%8.3f|%e|%.1e|%g|%g|%G' | format(1.5, 2.345, 3.14159, 12345.678, 0.00012, 1e10, 0.5, 1e-7) }} {{ '%c%c|%%|%r|%i' | format(233, 'x', "it's", 3.9) }}
{{ '%s and %s' % (1, none) }} {{ '%5.1f%%' % 99.55 }} {{ '%d items' % true }} {{ '%09d' % 123 }}
{{ '%d' | format('x') }}
{{ '%s %s' | format(1) }}
{{ 'ff' | int(base=16) }} {{ '0x1F' | int(0, 16) }} {{ '101' | int(base=2) }} {{ 'zz' | int(7, 16) }} {{ '-7f' | int(base=16) }} {{ '077' | int(base=8) }}
{{ d['items'] is defined }} {{ d['keys'] is string }} {{ d.b['items']() | list | length }} {{ 'a-b'['split']('-') }} {{ {'items': 1}['items'] }} {{ ({} ['get'])('x', 7) }} {{ {'items': 1}.items() | list | length }} {{ [{'items': 3}] | map(attribute='items') | list }}
{{ msgs.0.role }} {{ [[1, 2], [3, 4]].1.0 }} {{ [[1, 2], [3, 4]].0[1] }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %d %y %I %p %j %%') }}
{{ 'a-b_c'.split('-')[-1].lstrip('b').rstrip('c') }} {{ 'x'.join(['1', '2']).split('x', 1) }} {{ 'ab'.endswith('b') and not 'ab'.startswith('b') }} {{ 'a' in 'abc' and 'z' not in 'abc' }}
{{ (none or 'n') ~ (false or 0) ~ ('' or []) }} {{ none == false }} {{ none is defined }} {{ [none] | tojson }} {{ {'k': none} | tojson(indent=1) }} {{ none | string }} {{ 'x' ~ none }}
{{ d.b.x | upper }} {{ d['b']['y'] | map('string') | join('/') }} {{ d.b.get('y', [])[-1] is none }} {{ (d.get('nope') or {}).get('x', 'dflt') }} {{ d | length }} {{ d | list | first }}
{{ {'b': 1, 'a': [{}, {'c': []}]} | tojson(indent=2, ensure_ascii=False) }} {{ 'é' | tojson(ensure_ascii=True) }} {{ {'z': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}
{% macro outer(x) %}{% macro inner(y) %}<{{ y }}>{% endmacro %}{{ inner(x) ~ inner(y='k') }}{% endmacro %}{{ outer('q') }} {% macro v(a, b=none) %}{{ a }}{{ b is none }}{% endmacro %}{{ v('z') }}{{ v(a='z', b=0) }}
{% set ns = namespace(a=[], s='') %}{% for m in msgs %}{% set ns.a = ns.a + [m.role] %}{% set ns.s = ns.s ~ m.n %}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}{{ ns.a }} {{ ns.s }} {{ ns.a is sequence }}
{{ msgs | map(attribute='n') | sum }} {{ msgs | selectattr('n', 'ge', 2) | list | length }} {{ msgs[::-1] | map(attribute='n') | join }} {{ (msgs | last).role[:-3] }}
{{ 'x' is sameas('x') if false else 'skip' }} {{ none is sameas(none) }} {{ true is sameas(true) }} {{ d is sameas(d) }}
"""

VARIABLES = json.loads('{"d": {"a": 1, "b": {"y": [1, 2.0, null], "x": "<é>"}, "Z": false, "e": "q\\"\\n"}, "big": 123456789012345678901234567890, "msgs": [{"role": "user", "n": 2}, {"role": "assistant", "n": 1}, {"role": "user", "n": 3}]}')

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather <now> & later", "parameters": {"type": "object", "properties": {"zone": {"type": "string", "enum": ["a", "b"], "default": None}, "alpha": {"type": "number", "minimum": 0.5}, "list": {"type": "array", "items": {"type": "integer"}}}, "required": ["zone"], "additionalProperties": False}}}]
CALLS = [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"zone": "b", "deep": {"y": True, "x": None}, "n": 3, "f": 2.0, "flag": False, "nil": None, "l": [1, "é"]}}}, {"id": "c2", "type": "function", "function": {"name": "second", "arguments": {}}}]
SCHEMAS = TOOLS + [{"type": "function", "function": {"name": "second", "description": "Deep <one>", "parameters": {"type": "object", "properties": {"who": {"type": "object", "properties": {"first": {"type": "string", "description": "d"}, "age": {"type": ["integer", "null"], "default": None}}, "required": ["first"]}, "which": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "rows": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "default": []}, "any": {"type": "array"}}}}}, {"type": "function", "function": {"name": "none", "description": "", "parameters": {"type": "object", "properties": {}}}}]
USER = {"role": "user", "content": "Hi\n  there  "}
CONVERSATIONS = {
    "user": {"messages": [USER]},
    "system and history": {"messages": [{"role": "system", "content": "Be kind."}, USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello."}, {"role": "user", "content": "More"}]},
    "reasoning": {"messages": [USER, {"role": "assistant", "content": "A", "reasoning_content": "old"}, {"role": "user", "content": "B"}, {"role": "assistant", "content": "C", "reasoning_content": "new\n"}]},
    "tools": {"messages": [{"role": "system", "content": "S"}, USER], "tools": TOOLS},
    "calls": {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": CALLS}, {"role": "tool", "content": "{\"t\": 20}", "tool_call_id": "c1"}, {"role": "tool", "content": "ok", "tool_call_id": "c2"}, {"role": "user", "content": "Thanks"}], "tools": TOOLS},
    "call with text": {"messages": [USER, {"role": "assistant", "content": "Let me see.", "tool_calls": CALLS[:1]}, {"role": "tool", "content": "ok", "tool_call_id": "c1"}], "tools": TOOLS},
    "no thinking": {"messages": [USER], "enable_thinking": False},
    "thought calls": {"messages": [USER, {"role": "assistant", "content": "Looking.", "reasoning_content": "I should", "tool_calls": CALLS[:1]}, {"role": "tool", "name": "weather", "content": "[1, 2]", "tool_call_id": "c1"}, {"role": "assistant", "content": "Done", "reasoning_content": "so"}, {"role": "user", "content": "Again /no_think"}, {"role": "assistant", "content": "", "reasoning_content": "again", "tool_calls": CALLS[1:]}, {"role": "tool", "content": "é\"\n", "tool_call_id": "c2"}], "tools": SCHEMAS},
    "prefill": {"messages": [{"role": "system", "content": " S "}, USER, {"role": "assistant", "content": "Once "}]},
    "switches": {"messages": [{"role": "system", "content": "a"}, USER, {"role": "assistant", "content": "b", "reasoning_content": "r"}, USER], "reasoning_effort": "high", "kwargs": {"documents": [{"title": "t é", "text": "b", "n": None}], "clear_thinking": False, "thinking": True, "model_identity": "I am.", "builtin_tools": ["python", "none", "browser"], "keep_past_thinking": True, "date_string": "1 May 2025"}},
}

out = {"variables": VARIABLES, "snippets": [], "templates": []}
blocks = []
for line in SNIPPETS.strip("\n").split("\n"):
    blocks.append(line)
MULTI = ["  {% if true %}  indented\n  line\n  {% endif %}  after\n", "{% if true %}\na\n{%- endif %}\n\nb {%- if true %} c {% endif -%}   \n d\n\n", "a\n{{ 'b' }}\nc\n\n", "x\r\n  {# c #}\r\n{% raw %}\n {{ a }}\n  {% endraw %}\n y", "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\n{% set q %}\n  {{ 1 }}\n{% endset %}\n[{{ q }}]", "{%- if true -%}\n  {{ ' a ' }}  \n{%- endif +%}\n  b", "a {{ 1 }}\n   {%- if true %}\n b{% endif %} {% if true %} c {% endif %}\n", "{{ 1 -}}{{ 2 }} x{{ 3 -}} {{ 4 }}", "a{% if true -%}{{ 1 }} b{% endif %}"]
for s in blocks + MULTI:
    out["snippets"].append({"template": s, **render(s, VARIABLES)})
FULL = ["protocol-random", "tiny-moe", "qwen-like", "coder-like"]


def prepared(messages, thinking):
    """The messages as Render gives them to a template that reads message.thinking."""
    if not thinking:
        return messages
    all = []
    for m in messages:
        m = dict(m)
        if m.get("reasoning_content"):
            m["thinking"] = m["reasoning_content"]
            if m.get("tool_calls"):
                m["thinking"] += "\n\n" + m["content"] if m["content"].strip() else ""
                m["content"] = ""
        all.append(m)
    return all


for name in FULL + sorted(set(f[:-6] for f in glob.glob("*.jinja")) - set(FULL)):
    source = open(name + ".jinja").read()
    for title, conv in CONVERSATIONS.items():
        if name == "tiny-moe" and "calls" in title:
            continue
        for prompt in [False, True]:
            given = {k: v for k, v in conv.items() if k != "kwargs"}
            variables = {"enable_thinking": True, "bos_token": "<s>", "eos_token": "</s>", **given, **conv.get("kwargs", {}), "add_generation_prompt": prompt}
            variables["messages"] = prepared(conv["messages"], name == "harmony-like")
            out["templates"].append({"template": name, "title": title, "generate": prompt, **render(source, variables)})
out["conversations"] = CONVERSATIONS
json.dump(out, open("golden.json", "w"), ensure_ascii=False, indent=1)
