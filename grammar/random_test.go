package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"terrace/gguf"
	"terrace/internal/testfile"
	"terrace/tokenizer"
)

func readTokenizer(t testing.TB, path string) *tokenizer.Tokenizer {
	t.Helper()
	var f *gguf.File
	var err error
	if strings.HasSuffix(path, ".gz") {
		b := testfile.Gunzip(t, path)
		f, err = gguf.OpenReader(bytes.NewReader(b), int64(len(b)), path)
	} else {
		f, err = gguf.Open(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.New(f.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// random draws schemas that have values, as people write them.
type random struct {
	*rand.Rand
	defs bool // there are definitions to refer to
}

func (r random) one(of ...string) string { return of[r.IntN(len(of))] }

func (r random) chance(percent int) bool { return r.IntN(100) < percent }

func (r random) schema(depth int) string {
	kinds := []string{"string", "string", "integer", "number", "boolean", "null", "enum", "const", "any"}
	if depth > 0 {
		kinds = append(kinds, "object", "object", "object", "array", "array", "anyOf", "oneOf", "allOf", "types", "map", "tuple")
		if r.defs {
			kinds = append(kinds, "ref", "ref")
		}
	}
	note := ""
	if r.chance(20) {
		note = fmt.Sprintf(`"description":"d%d",`, r.IntN(9))
	}
	switch kind := r.one(kinds...); kind {
	case "string":
		return "{" + note + `"type":"string"` + r.stringLimits() + "}"
	case "integer":
		return "{" + note + `"type":"integer"` + r.numberLimits(true) + "}"
	case "number":
		return "{" + note + `"type":"number"` + r.numberLimits(false) + "}"
	case "boolean", "null":
		return `{"type":"` + kind + `"}`
	case "enum":
		return r.one(`{"enum":["red","gr\"een","blü","\n"]}`, `{"type":"string","enum":["a","b",3]}`, `{"enum":[1,2.5,-3e2,null,true,"x",[1,{"a":[]}]]}`, `{"type":"integer","enum":[1,2,3],"minimum":2}`)
	case "const":
		return r.one(`{"const":"c"}`, `{"const":null}`, `{"const":{"a":[1,2],"b":"\u20ac"}}`, `{"const":-7}`)
	case "any":
		return r.one(`{}`, `true`, `{"title":"anything"}`)
	case "anyOf":
		return `{"anyOf":[` + r.schema(depth-1) + "," + r.schema(depth-1) + "," + r.schema(depth-1) + "]}"
	case "oneOf":
		return r.one(
			`{"oneOf":[{"type":"string"`+r.stringLimits()+`},{"type":"integer"},{"type":"array","items":`+r.schema(depth-1)+`},{"type":"null"}]}`,
			`{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"v":`+r.schema(depth-1)+`},"required":["kind"]},{"type":"object","properties":{"kind":{"enum":["b","c"]}},"required":["kind"]}]}`,
			`{"type":"integer","oneOf":[{"minimum":10,"maximum":99},{"maximum":9}]}`)
	case "allOf":
		return `{"allOf":[` + r.object(depth) + "," + r.one(`{"properties":{"p0":{"type":["string","integer","object","array","number","boolean","null"]}}}`, `{"required":["extra"]}`, `{"type":"object","properties":{"extra":{"type":"integer"}}}`, `{"description":"nothing"}`) + "]}"
	case "types":
		return `{"type":["integer","string","null","array"]` + r.stringLimits() + `,"minimum":3,"items":{"type":"boolean"}}`
	case "map":
		return `{"type":"object","additionalProperties":` + r.schema(depth-1) + r.one("", `,"minProperties":1`, `,"maxProperties":3`) + "}"
	case "tuple":
		return `{"type":"array","prefixItems":[` + r.schema(depth-1) + "," + r.schema(depth-1) + "]" + r.one("", `,"items":false`, `,"items":{"type":"integer"},"maxItems":4`, `,"minItems":2,"maxItems":2`) + "}"
	case "ref":
		return `{"$ref":"#/$defs/` + r.one("node", "leaf", "tree") + `"}`
	case "array":
		a := r.IntN(3)
		return "{" + note + `"type":"array","items":` + r.schema(depth-1) + r.one("", "", fmt.Sprintf(`,"minItems":%d`, a), fmt.Sprintf(`,"minItems":%d,"maxItems":%d`, a, a+r.IntN(30)), `,"maxItems":2`) + "}"
	}
	return r.object(depth)
}

func (r random) object(depth int) string {
	var props, required []string
	for i := range r.IntN(5) {
		name := fmt.Sprintf("p%d", i)
		if r.chance(10) {
			name = r.one("a b", "ключ", `q\"t`, "$x", "p0p") + fmt.Sprint(i)
		}
		props = append(props, `"`+name+`":`+r.schema(depth-1))
		if r.chance(50) {
			required = append(required, `"`+name+`"`)
		}
	}
	out := `{"type":"object","properties":{` + strings.Join(props, ",") + "}"
	if len(required) > 0 || r.chance(20) {
		out += `,"required":[` + strings.Join(required, ",") + "]"
	}
	return out + r.one("", "", `,"additionalProperties":false`, `,"additionalProperties":true`, `,"additionalProperties":{"type":"integer"}`) + "}"
}

func (r random) stringLimits() string {
	switch r.IntN(7) {
	case 0:
		return fmt.Sprintf(`,"minLength":%d,"maxLength":%d`, r.IntN(4), 4+r.IntN(60))
	case 1:
		return fmt.Sprintf(`,"maxLength":%d`, 1+r.IntN(300))
	case 2:
		return `,"pattern":"` + r.one(`^[a-z]{2,5}$`, `^\\d{3}-\\d{4}$`, `^ab+c`, `^(foo|bar)[0-9]*$`, `^[^a-z\\s]+$`, `^[A-Z][\\w.]{0,3}\\.(txt|md)$`, `^.{1,10}$`, `\\$`) + `"`
	case 3:
		return `,"format":"` + r.one("date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname", "uri", "duration", "unheard-of") + `"`
	case 4:
		return `,"pattern":"^[a-z]+(-[a-z]+)*$","minLength":3,"maxLength":12`
	}
	return ""
}

func (r random) numberLimits(whole bool) string {
	lo := float64(r.IntN(2000)-1000) / r.power()
	hi := lo + float64(1+r.IntN(5000))/r.power()
	if whole {
		lo, hi = math.Floor(lo), math.Floor(hi)+2
	}
	switch r.IntN(7) {
	case 0:
		return fmt.Sprintf(`,"minimum":%v,"maximum":%v`, lo, hi)
	case 1:
		return fmt.Sprintf(`,"exclusiveMinimum":%v,"maximum":%v`, lo, hi)
	case 2:
		return fmt.Sprintf(`,"minimum":%v`, lo)
	case 3:
		return fmt.Sprintf(`,"exclusiveMaximum":%v`, hi)
	case 4:
		return r.one(`,"multipleOf":5`, `,"multipleOf":3`, `,"multipleOf":0.5`)
	}
	return ""
}

func (r random) power() float64 { return math.Pow(10, float64(r.IntN(4))) }

// document is a whole schema, with definitions that refer to themselves.
func (r random) document() string {
	r.defs = r.chance(40)
	if !r.defs {
		return r.schema(3)
	}
	s := strings.TrimSuffix(r.object(3), "}")
	return s + `,"$defs":{"leaf":` + random{r.Rand, false}.schema(1) + `,"node":{"type":"object","properties":{"value":{"$ref":"#/$defs/leaf"},"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/node"}]}},"required":["value"]},` +
		`"tree":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["name","children"],"additionalProperties":false}}}`
}

// check is the test's own, small reading of JSON Schema.
func check(root, schema, v any, at string) error {
	s, ok := schema.(map[string]any)
	if !ok {
		if schema == false {
			return fmt.Errorf("%s: false", at)
		}
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		target := root.(map[string]any)["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")]
		if err := check(root, target, v, at); err != nil {
			return err
		}
	}
	count := func(key string) (n, of int) {
		list, _ := s[key].([]any)
		for _, e := range list {
			if check(root, e, v, at) == nil {
				n++
			}
		}
		return n, len(list)
	}
	if n, of := count("allOf"); n != of {
		return fmt.Errorf("%s: %d of %d of allOf", at, n, of)
	}
	if n, of := count("anyOf"); of > 0 && n == 0 {
		return fmt.Errorf("%s: none of anyOf", at)
	}
	if n, of := count("oneOf"); of > 0 && n != 1 {
		return fmt.Errorf("%s: %d of oneOf", at, n)
	}
	text := func(x any) string { b, _ := json.Marshal(x); return string(b) }
	if c, ok := s["const"]; ok && text(c) != text(v) {
		return fmt.Errorf("%s: not const", at)
	}
	if e, ok := s["enum"].([]any); ok {
		found := false
		for _, x := range e {
			found = found || text(x) == text(v)
		}
		if !found {
			return fmt.Errorf("%s: not of enum", at)
		}
	}
	if t, ok := s["type"]; ok {
		names, ok := t.([]any)
		if !ok {
			names = []any{t}
		}
		is := false
		for _, n := range names {
			switch x := v.(type) {
			case nil:
				is = is || n == "null"
			case bool:
				is = is || n == "boolean"
			case string:
				is = is || n == "string"
			case float64:
				is = is || n == "number" || n == "integer" && x == math.Trunc(x)
			case []any:
				is = is || n == "array"
			default:
				is = is || n == "object"
			}
		}
		if !is {
			return fmt.Errorf("%s: %v is not of type %v", at, v, t)
		}
	}
	num := func(key string) (float64, bool) { x, ok := s[key].(float64); return x, ok }
	bad := func(key string) error { return fmt.Errorf("%s: %s %v: %.80v", at, key, s[key], v) }
	switch v := v.(type) {
	case float64:
		if x, ok := num("minimum"); ok && v < x {
			return bad("minimum")
		}
		if x, ok := num("maximum"); ok && v > x {
			return bad("maximum")
		}
		if x, ok := num("exclusiveMinimum"); ok && v <= x {
			return bad("exclusiveMinimum")
		}
		if x, ok := num("exclusiveMaximum"); ok && v >= x {
			return bad("exclusiveMaximum")
		}
		if x, ok := num("multipleOf"); ok && math.Mod(v, x) != 0 {
			return bad("multipleOf")
		}
	case string:
		n := float64(utf8.RuneCountInString(v))
		if x, ok := num("minLength"); ok && n < x {
			return bad("minLength")
		}
		if x, ok := num("maxLength"); ok && n > x {
			return bad("maxLength")
		}
		if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			return bad("pattern")
		}
		var err error
		switch s["format"] {
		case "date":
			_, err = time.Parse(time.DateOnly, v)
		case "date-time":
			_, err = time.Parse(time.RFC3339Nano, v)
		case "ipv4", "ipv6":
			_, err = netip.ParseAddr(v)
		}
		if err != nil {
			return bad("format")
		}
	case []any:
		n := float64(len(v))
		if x, ok := num("minItems"); ok && n < x {
			return bad("minItems")
		}
		if x, ok := num("maxItems"); ok && n > x {
			return bad("maxItems")
		}
		first, _ := s["prefixItems"].([]any)
		for i, e := range v {
			sub := s["items"]
			if i < len(first) {
				sub = first[i]
			}
			if err := check(root, sub, e, fmt.Sprintf("%s/%d", at, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		n := float64(len(v))
		if x, ok := num("minProperties"); ok && n < x {
			return bad("minProperties")
		}
		if x, ok := num("maxProperties"); ok && n > x {
			return bad("maxProperties")
		}
		required, _ := s["required"].([]any)
		for _, k := range required {
			if _, ok := v[k.(string)]; !ok {
				return bad("required")
			}
		}
		props, _ := s["properties"].(map[string]any)
		for k, e := range v {
			sub, ok := props[k]
			if !ok {
				sub = s["additionalProperties"]
			}
			if err := check(root, sub, e, at+"/"+k); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkOn draws a text by random logits; after soft tokens, those that close what is open become likely.
func walkOn(t testing.TB, m *Matcher, ix *Index, r *rand.Rand, logits []float32, soft int) string {
	t.Helper()
	var out []byte
	for n := 0; n < 4000; n++ {
		for i := range logits {
			logits[i] = r.Float32()
		}
		if n > soft && n%3 > 0 {
			for id := range int32(ix.size) {
				switch b := ix.v.Bytes(id); {
				case ix.v.IsEnd(id):
					logits[id] += 9
				case len(b) != 1:
					logits[id] -= 9
				case strings.IndexByte("]}\"n0", b[0]) >= 0:
					logits[id] += float32(strings.IndexByte("0n]}\"", b[0])) + 1
				case strings.IndexByte("abc$.tx", b[0]) >= 0 && n%3 == 1: // what patterns ask for
					logits[id] += 9 * r.Float32()
				case b[0] == ',' || b[0] == '[' || b[0] == '{':
					logits[id] -= 2
				}
			}
		}
		if _, _, err := m.Apply(logits); err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		best := int32(0)
		for i, l := range logits {
			if l > logits[best] {
				best = int32(i)
			}
		}
		if err := m.Accept(best); err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		if m.Ended() {
			return string(out)
		}
		out = append(out, ix.v.Bytes(best)...)
	}
	t.Fatalf("no end after %d bytes: ...%q", len(out), out[max(0, len(out)-200):])
	return ""
}

// TestRandomSchemas draws schemas, and for each of them texts from random logits under the mask, on the demo model's
// vocabulary: every text must be UTF-8 and JSON, and valid by two readings of JSON Schema.
func TestRandomSchemas(t *testing.T) {
	tok := readTokenizer(t, "../testdata/tiny-moe-Q4_K.gguf")
	ix := NewIndex(VocabOf(tok))
	logits := make([]float32, ix.Size())
	r := rand.New(rand.NewPCG(7, 70))
	done, refused, bytesOut := 0, map[string]int{}, 0
	for n := 0; done < 300; n++ {
		src := random{r, false}.document()
		g, err := FromSchema(json.RawMessage(src), SchemaOptions{})
		if err != nil {
			text := err.Error()
			refused[text[strings.LastIndex(text, ": ")+2:]]++
			if n > 1000 {
				t.Fatal("too many schemas are refused")
			}
			continue
		}
		done++
		validate := compileSchema(t, src)
		var schema any
		if err := json.Unmarshal([]byte(src), &schema); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			m := mustMatch(t, g, ix)
			out := walkOn(t, m, ix, r, logits, r.IntN(60))
			bytesOut += len(out)
			if !utf8.ValidString(out) {
				t.Fatalf("%s\nnot UTF-8: %q", src, out)
			}
			var v any
			if err := json.Unmarshal([]byte(out), &v); err != nil {
				t.Fatalf("%s\n%s\n%v", src, out, err)
			}
			if err := check(schema, schema, v, ""); err != nil {
				t.Fatalf("%s\n%s\n%v", src, out, err)
			}
			if err := validate(out); err != nil {
				t.Fatalf("%s\n%s\n%v", src, out, err)
			}
		}
	}
	left := 0
	for _, n := range refused {
		left += n
	}
	t.Logf("300 schemas, %d bytes of values, %d schemas refused: %v", bytesOut, left, refused)
	if left > 60 {
		t.Errorf("%d schemas were refused", left)
	}
}

// compileSchema gives another validator's verdict.
func compileSchema(t testing.TB, src string) func(text string) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(src))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	return func(text string) error {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}

// TestLargeVocabulary does the same on vocabularies of real models.
func TestLargeVocabulary(t *testing.T) {
	for _, name := range []string{"qwen3", "mistral_spm", "deepseek_v3"} {
		tok := readTokenizer(t, "../testdata/tokenizers/"+name+".gguf.gz")
		ix := NewIndex(VocabOf(tok))
		logits := make([]float32, ix.Size())
		r := rand.New(rand.NewPCG(1, 2))
		for _, src := range []string{
			`{"type":"object"}`,
			`{"type":"object","properties":{"name":{"type":"string","maxLength":40},"tags":{"type":"array","items":{"type":"string","pattern":"^[а-яa-z]{1,9}$"}},"n":{"type":"number","minimum":-1}},"required":["name","tags","n"]}`,
		} {
			g, validate := mustSchema(t, src), compileSchema(t, src)
			for range 3 {
				out := walkOn(t, mustMatch(t, g, ix), ix, r, logits, 30)
				if err := validate(out); err != nil || !utf8.ValidString(out) {
					t.Fatalf("%s: %s: %q: %v", name, src, out, err)
				}
			}
		}
	}
}

// paddedCount is a count with zeros before it, which Go takes for plain text and ECMAScript for the count.
var paddedCount = regexp.MustCompile(`\{0[0-9]|\{[0-9]*,0[0-9]`)

// compileGo reads an expression as Go does, where that means the same.
func compileGo(src string) (*regexp.Regexp, error) {
	if paddedCount.MatchString(src) {
		return nil, errors.New("a count with zeros before it")
	}
	for _, other := range []string{`\u`, `\Z`, `\z`, `\A`, `\Q`, `\E`, `\C`, `\a`, `[[:`, `\0`, `(?<`, `[]`, `[^]`} { // read in another way, or not at all
		if strings.Contains(src, other) {
			return nil, fmt.Errorf("%s", other)
		}
	}
	return regexp.Compile(src)
}
