package grammar

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func mustSchema(t testing.TB, src string) *Grammar {
	t.Helper()
	g, err := FromSchema(json.RawMessage(src), SchemaOptions{})
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	return g
}

func TestSchema(t *testing.T) {
	long := func(s string, n int) string { return `"` + strings.Repeat(s, n) + `"` }
	for src, c := range map[string]struct{ yes, no []string }{
		`{}`:                         {[]string{`{}`, `[]`, `{"a": [1, {"b":null}], "c":"d"}`, `"x"`, `-1.5e3`, `true`, `[[[[]]]]`, "{\n  \"a\": 1\n}"}, []string{``, `{`, `{"a"}`, `[1,]`, `{"a":1,}`, `01`, `tru`, ` 1`, `1 `, `"\x"`, "\"\n\"", `"\ud800"`}},
		`true`:                       {[]string{`1`, `"\ud83d\ude00\u00e9\\\/"`}, []string{`"\ud83d"`}},
		`{"type":"object"}`:          {[]string{`{}`, `{"a":1}`}, []string{`[]`, `1`, `{"":1}`, `{"\u0061":1}`}},
		`{"type":["string","null"]}`: {[]string{`"a"`, `null`}, []string{`1`, `{}`}},
		`{"type":"boolean"}`:         {[]string{`true`, `false`}, []string{`null`, `tr`}},
		`{"type":"integer"}`:         {[]string{`0`, `-5`, `123456789012345`}, []string{`-0`, `01`, `1.5`, `1234567890123456`, `1e3`}},
		`{"type":"number"}`:          {[]string{`0`, `-5.25`, `1e10`, `1E-5`}, []string{`1.`, `.5`, `1e999`, `+1`}},
		`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{}},"required":["b"]}`: {
			[]string{`{"b":"x"}`, `{"a":1,"b":"x"}`, `{"a": 1, "b": "x", "c": null}`, `{"b":"","c":[]}`}, []string{`{}`, `{"a":1}`, `{"b":"x","a":1}`, `{"b":"x","d":1}`, `{"b":1}`}},
		`{"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":{"type":"boolean"}}`: {
			[]string{`{}`, `{"a":1,"b":2}`, `{"b":1,"c":true,"aa":false}`, `{"bb":true}`, `{"x":true}`}, []string{`{"c":1}`, `{"a":true}`, `{"b":1,"a":2}`, `{"b":1,"b":true}`, `{"a":1,}`}},
		`{"type":"object","properties":{"a":{}},"required":["z","a"],"additionalProperties":{"type":"null"}}`: {
			[]string{`{"a":1,"z":null}`, `{"a":1,"z":null,"y":null}`}, []string{`{"a":1}`, `{"a":1,"z":1}`}},
		`{"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2}`: {
			[]string{`{"a":1}`, `{"a":1,"b":2}`}, []string{`{}`, `{"a":1,"b":2,"c":3}`}},
		`{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"minProperties":1}`:               {[]string{`{"a":null}`, `{"b":null}`}, []string{`{}`}},
		`{"type":"object","additionalProperties":false}`:                                                           {[]string{`{}`}, []string{`{"a":1}`}},
		`{"type":"array","items":{"type":"integer"}}`:                                                              {[]string{`[]`, `[1,2, 3]`, "[\n\t1\n]"}, []string{`[1,]`, `["a"]`, `[,1]`}},
		`{"items":{"type":"integer"},"minItems":2,"maxItems":3}`:                                                   {[]string{`[1,2]`, `[1,2,3]`}, []string{`[]`, `[1]`, `[1,2,3,4]`}},
		`{"items":{"type":"null"},"minItems":50,"maxItems":60}`:                                                    {[]string{`[` + strings.Repeat("null,", 49) + `null]`, `[` + strings.Repeat("null,", 59) + `null]`}, []string{`[` + strings.Repeat("null,", 48) + `null]`, `[` + strings.Repeat("null,", 60) + `null]`}},
		`{"type":"array","maxItems":0}`:                                                                            {[]string{`[]`, `[ ]`}, []string{`[1]`}},
		`{"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`:                                     {[]string{`[]`, `[1]`, `[1,"a"]`}, []string{`["a"]`, `[1,"a",1]`, `[1,1]`}},
		`{"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"},"minItems":1,"maxItems":4}`: {[]string{`[1]`, `[1,"a"]`, `[1,"a",null,null]`}, []string{`[]`, `[1,null]`, `[1,"a",null,null,null]`}},
		`{"items":[{"type":"integer"}],"additionalItems":{"type":"string"},"minItems":3}`:                          {[]string{`[1,"a","b"]`}, []string{`[1,"a"]`, `[1,2,3]`}},
		`{"items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":1,"maxItems":2}`:                            {[]string{`["a"]`, `["a","c"]`, `["b","c"]`}, []string{`[]`, `["a","a"]`, `["a","b","c"]`}},
		`{"enum":["a",1,null,{"b":[1,2]},"é\""]}`:                                                                  {[]string{`"a"`, `1`, `null`, `{"b":[1,2]}`, `"é\""`}, []string{`"b"`, `2`}},
		`{"type":"string","enum":["a",1,"bb"],"minLength":2}`:                                                      {[]string{`"bb"`}, []string{`"a"`, `1`}},
		`{"enum":[1,2,3],"not":{"const":2}}`:                                                                       {[]string{`1`, `3`}, []string{`2`}},
		`{"const":{"a":1}}`:                                                                                        {[]string{`{"a":1}`}, []string{`{"a":2}`, `{}`}},
		`{"anyOf":[{"type":"integer"},{"const":"x"}]}`:                                                             {[]string{`1`, `"x"`}, []string{`"y"`}},
		`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`: {
			[]string{`{"a":1}`, `{"b":1}`, `{"a":1,"b":1}`}, []string{`{}`}},
		`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]}`: {
			[]string{`{"k":"a","x":1}`, `{"k":"b"}`}, []string{`{"k":"a"}`, `{"k":"b","x":1}`}},
		`{"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":4,"maxLength":5},{"type":"array"},{"type":"integer","minimum":0},{"type":"integer","exclusiveMaximum":0}]}`: {
			[]string{`"abc"`, `"abcde"`, `[]`, `-1`, `0`}, []string{`"abcdef"`}},
		`{"oneOf":[{"properties":{"a":{}},"required":["a"],"additionalProperties":false},{"properties":{"b":{}},"required":["b"],"additionalProperties":false}]}`: {
			[]string{`{"a":1}`, `{"b":1}`}, []string{`{}`}},
		`{"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"string"},"a":{"minimum":5}}}]}`: {
			[]string{`{"a":5}`, `{"a":7,"b":""}`}, []string{`{"a":4}`, `{"b":""}`}},
		`{"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]}`: {[]string{`{"a":1}`, `{}`}, []string{`{"b":1}`}},
		`{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}}`: {
			[]string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}`}, []string{`{"v":1}`, `{"v":1,"next":1}`}},
		`{"type":"array","items":{"$ref":"#"}}`: {[]string{`[]`, `[[],[[]]]`}, []string{`[1]`}},
		`{"definitions":{"a/b":{"type":"integer"},"c%d":{"$ref":"#/definitions/a~1b"}},"items":{"$ref":"#/definitions/c%25d"}}`:      {[]string{`[1]`}, []string{`["a"]`}},
		`{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s","maxLength":2,"description":"x"}},"required":["a"]}`: {[]string{`{"a":"ab"}`}, []string{`{"a":"abc"}`}},
		`{"type":"string","minLength":2,"maxLength":3}`:                                 {[]string{`"ab"`, `"€€€"`, `"\n\u00e9\ud83d\ude00"`, "\"\U0001f600\U0001f600\""}, []string{`"a"`, `"abcd"`, `"\n"`}},
		`{"type":"string","maxLength":500}`:                                             {[]string{long("ä", 500)}, []string{long("ä", 501)}},
		`{"type":"string","pattern":"^[a-c]+x?$"}`:                                      {[]string{`"ab"`, `"cx"`}, []string{`"x"`, `""`, `"abd"`}},
		`{"type":"string","pattern":"b"}`:                                               {[]string{`"b"`, `"abc"`, `"\"b\u0000"`}, []string{`"ac"`}},
		`{"type":"string","pattern":"^a|b$"}`:                                           {[]string{`"ax"`, `"xb"`}, []string{`"xa"`}},
		`{"type":"string","pattern":"^(\\d{3}-){2}\\d\\\\\"[^\\s\"]$"}`:                 {[]string{`"123-456-7\\\"x"`}, []string{`"123-4567"`}},
		`{"type":"string","pattern":"^(?:a|bc)*?[\\w.-]{2,}$"}`:                         {[]string{`"abcx_"`, `".-"`}, []string{`"."`, `"é."`}},
		`{"type":"string","pattern":"^\\t\\u0041[\\x42-D]$"}`:                           {[]string{`"\tAC"`}, []string{`"\tAE"`}},
		`{"type":"string","pattern":"^[a-z]+$","minLength":2,"maxLength":4}`:            {[]string{`"ab"`, `"abcd"`}, []string{`"a"`, `"abcde"`}},
		`{"type":"string","pattern":"^[A-Z][a-z]*-[0-9]{2}$","maxLength":6}`:            {[]string{`"A-12"`, `"Abc-12"`}, []string{`"Abcd-12"`}},
		`{"type":"string","pattern":"^([a-z]{2}|[0-9])+$","minLength":3,"maxLength":3}`: {[]string{`"123"`}, []string{`"12"`, `"1234"`}},
		`{"type":"string","pattern":"foo","maxLength":5}`:                               {[]string{`"foo"`}, []string{`"foofoo"`, `"fo"`}},
		`{"type":"string","format":"date"}`:                                             {[]string{`"2024-02-29"`, `"2023-12-31"`, `"2000-02-29"`}, []string{`"2023-02-29"`, `"2023-13-01"`, `"2023-04-31"`, `"1900-02-29"`}},
		`{"type":"string","format":"time"}`:                                             {[]string{`"23:59:59Z"`, `"00:00:00.123+02:00"`}, []string{`"24:00:00Z"`, `"23:59:59"`}},
		`{"type":"string","format":"date-time"}`:                                        {[]string{`"2024-02-29T23:59:59Z"`}, []string{`"2024-02-29 23:59:59Z"`}},
		`{"type":"string","format":"uuid"}`:                                             {[]string{`"123e4567-e89b-12d3-a456-426614174000"`}, []string{`"123e4567e89b12d3a456426614174000"`}},
		`{"type":"string","format":"email","maxLength":254}`:                            {[]string{`"a.b@c-d.org"`}, []string{`"a@b"`, `"@b.c"`, `".a@b.c"`}},
		`{"type":"string","format":"ipv4"}`:                                             {[]string{`"1.2.3.255"`}, []string{`"1.2.3.256"`, `"01.2.3.4"`}},
		`{"type":"string","format":"no-such"}`:                                          {[]string{`"x"`}, nil},
		`{"type":"integer","minimum":-3,"maximum":12}`:                                  {[]string{`-3`, `0`, `9`, `10`, `12`}, []string{`-4`, `13`, `-0`, `20`}},
		`{"type":"integer","exclusiveMinimum":99,"exclusiveMaximum":1001}`:              {[]string{`100`, `999`, `1000`}, []string{`99`, `1001`}},
		`{"type":"integer","minimum":1.5}`:                                              {[]string{`2`, `100000000`}, []string{`1`, `-5`, `0`}},
		`{"type":"integer","maximum":-1.5}`:                                             {[]string{`-2`, `-100`}, []string{`-1`, `1`}},
		`{"type":"integer","minimum":5,"exclusiveMinimum":true}`:                        {[]string{`6`}, []string{`5`}},
		`{"type":"integer","minimum":123456789012345678901}`:                            {[]string{`123456789012345678901`, `200000000000000000000`}, []string{`123456789012345678900`}},
		`{"type":"integer","multipleOf":7}`:                                             {[]string{`0`, `7`, `-14`, `700`, `1001`}, []string{`1`, `15`, `1000`}},
		`{"type":"integer","multipleOf":50,"minimum":100,"maximum":250}`:                {[]string{`100`, `150`, `250`}, []string{`50`, `300`, `125`}},
		`{"type":"number","multipleOf":0.01}`:                                           {[]string{`1.25`, `3`, `-0.5`}, []string{`1.255`, `1e2`}},
		`{"type":"number","multipleOf":2.5}`:                                            {[]string{`5`, `-10`}, []string{`3`}},
		`{"type":"number","minimum":0,"maximum":1}`:                                     {[]string{`0`, `1`, `0.5`, `1.0`, `0.999`}, []string{`1.01`, `-0.5`, `2`, `1e0`}},
		`{"type":"number","exclusiveMinimum":0,"maximum":2.75}`:                         {[]string{`0.001`, `2`, `2.75`, `2.7`, `2.7499`, `1.9`}, []string{`0`, `0.0`, `2.751`, `2.8`, `3`}},
		`{"type":"number","minimum":-1.25,"exclusiveMaximum":10.5}`:                     {[]string{`-1.25`, `-1.2`, `-0.01`, `0`, `10`, `10.49`, `9.9`}, []string{`-1.26`, `10.5`, `-2`, `-1.3`, `11`}},
		`{"type":"number","minimum":100}`:                                               {[]string{`100`, `100.5`, `99999`}, []string{`99.9`, `-100`}},
		`{"type":"number","maximum":-0.5}`:                                              {[]string{`-0.5`, `-0.51`, `-7`}, []string{`-0.49`, `0`}},
		`{"type":"number","minimum":0.25,"maximum":0.255}`:                              {[]string{`0.25`, `0.2501`, `0.255`}, []string{`0.24`, `0.2551`, `0.3`}},
		`{"title":"x","description":"y","default":1,"examples":[1],"$schema":"s","$id":"i","$comment":"c","deprecated":true,"x-other":{},"type":"null"}`: {[]string{`null`}, nil},
		`{"properties":{"a":false,"b":{"type":"null"}}}`:                                     {[]string{`{}`, `{"b":null}`}, []string{`{"a":1}`}},
		`{"type":"object","properties":{"a":{"type":"null"}},"unevaluatedProperties":false}`: {[]string{`{"a":null}`}, []string{`{"b":null}`}},
		`{"not":false,"if":true,"type":"null"}`:                                              {[]string{`null`}, nil},
		`{"minLength":2}`:                                                                    {[]string{`"ab"`}, []string{`"a"`, `1`}},
	} {
		g, err := FromSchema(json.RawMessage(src), SchemaOptions{})
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		for _, s := range c.yes {
			if whole, _ := accepts(t, g, s); !whole {
				t.Errorf("%s does not accept %.80s", src, s)
			}
		}
		for _, s := range c.no {
			if whole, _ := accepts(t, g, s); whole {
				t.Errorf("%s accepts %.80s", src, s)
			}
		}
	}
	g, err := FromSchema(json.RawMessage(`{"items":{"properties":{"a":{}},"required":["a"]}}`), SchemaOptions{Compact: true})
	if err != nil {
		t.Fatal(err)
	}
	if whole, _ := accepts(t, g, `[{"a":1},{"a":[]}]`); !whole {
		t.Error("compact text is not accepted")
	}
	if whole, _ := accepts(t, g, `[{"a": 1}]`); whole {
		t.Error("white space is accepted")
	}
}

func TestSchemaErrors(t *testing.T) {
	for src, want := range map[string]string{
		``:                                    "#: the schema is no JSON",
		`{"type":"object"} x`:                 "#: the schema is no JSON",
		`[1]`:                                 "#: a schema is an object or a boolean, not an array",
		`false`:                               "#: false allows no value",
		`{"type":"strin"}`:                    "#/type: type \"strin\" is not known",
		`{"properties":{"a":{"type":7}}}`:     "#/properties/a/type: type 7 is not known",
		`{"properties":{"a/b":{"not":{}}}}`:   "#/properties/a~1b/not: not is not supported",
		`{"items":{"contains":{}}}`:           "#/items/contains: contains is not supported",
		`{"patternProperties":{"a":{}}}`:      "#/patternProperties: patternProperties is not supported",
		`{"dependentRequired":{"a":["b"]}}`:   "#/dependentRequired",
		`{"if":{},"then":{"type":"null"}}`:    "#/if: if is not supported",
		`{"type":"array","uniqueItems":true}`: "#/uniqueItems: uniqueItems is supported only",
		`{"$ref":"http://x/y"}`:               "#/$ref: $ref \"http://x/y\" does not point into the schema",
		`{"$ref":"#/$defs/x"}`:                "#/$ref: $ref \"#/$defs/x\" points to nothing",
		`{"$ref":"#"}`:                        "#/$ref: # refers to itself without a value in between",
		`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`: "refers to itself",
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`:                           "no text that it allows ever ends",
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:                                             "#/oneOf: choices 0 and 1 may allow the same value",
		`{"oneOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]}`:                                  "#/oneOf: choices 0 and 1",
		`{"anyOf":[]}`: "#/anyOf: anyOf is an array, not an array of schemas",
		`{"allOf":[{"type":"string"},{"type":"null"}]}`: "no type is allowed",
		`{"enum":[]}`:                                                        "none of the listed values",
		`{"enum":[1],"type":"string"}`:                                       "none of the listed values",
		`{"type":"string","minLength":3,"maxLength":2}`:                      "minLength 3 is above maxLength 2",
		`{"type":"string","minLength":-1}`:                                   "#/minLength: minLength is -1, not a count",
		`{"type":"string","pattern":"(?=a)"}`:                                "#/pattern: pattern: at character 2: groups that begin with (?",
		`{"type":"string","pattern":"a\\b"}`:                                 "\\b is not supported",
		`{"type":"string","pattern":"(a)\\1"}`:                               "\\1 is not supported",
		`{"type":"string","pattern":"a(^b)"}`:                                "an anchor within",
		`{"type":"string","pattern":"[a"}`:                                   "a class is not closed",
		`{"type":"string","pattern":"^abc$","maxLength":2}`:                  "#/pattern: no text of it with 0 to 2 characters",
		`{"type":"string","format":"date","pattern":"x"}`:                    "#/format: format together with #/pattern is not supported",
		`{"type":"integer","minimum":5,"maximum":4}`:                         "no number lies within the bounds",
		`{"type":"integer","minimum":5,"multipleOf":7}`:                      "multiples of 7 with one bound",
		`{"type":"number","minimum":"a"}`:                                    "#/minimum: minimum is \"a\", not a number",
		`{"type":"number","multipleOf":0}`:                                   "#/multipleOf: multipleOf is 0, not a positive number",
		`{"type":"array","items":{"type":"null"},"minItems":3,"maxItems":2}`: "minItems 3 is above",
		`{"type":"object","minProperties":2}`:                                "minProperties 2 is above the 0 required properties",
		`{"type":"object","properties":{"a":{},"b":{}},"maxProperties":1}`:   "maxProperties 1 is below the 2 properties",
		`{"type":"object","required":["a"],"additionalProperties":false}`:    "#/required: property \"a\" is required, and additionalProperties forbids it",
		`{"required":"a"}`:                                                   "#/required: required is \"a\", not an array of names",
		`{"properties":[]}`:                                                  "#/properties: properties is an array, not an object",
		`{"properties":{"a":1}}`:                                             "#/properties/a: a schema is an object or a boolean, not 1",
		strings.Repeat(`{"items":`, 300) + `{}` + strings.Repeat(`}`, 300):   "nested more than 200 deep",
		`{"allOf":[` + strings.Repeat(`{"anyOf":[{"minLength":1},{"minLength":2},{"minLength":3}]},`, 9) + `{}]}`: "more than 256 combinations",
	} {
		_, err := FromSchema(json.RawMessage(src), SchemaOptions{})
		var se *SchemaError
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.90s: %v, want ...%s...", src, err, want)
		} else if !errors.As(err, &se) || !strings.HasPrefix(se.Path, "#") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.90s: error %q has no path or several lines", src, err)
		}
	}
}
