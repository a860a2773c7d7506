package server

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"terrace/engine"
)

func TestEmbeddings(t *testing.T) {
	h := newHost(t, Options{Embed: true})
	r := h.ok("/v1/embeddings", m{"input": []string{"One text.", "Another one, a little longer."}, "model": "any"}).json
	data := r["data"].([]any)
	u := r["usage"].(m)
	if len(data) != 2 || r["object"] != "list" || r["model"] != "random" || u["prompt_tokens"] != u["total_tokens"] || u["total_tokens"].(float64) < 4 {
		t.Fatalf("%v", r)
	}
	vector := func(v any) []float64 {
		var out []float64
		for _, x := range v.([]any) {
			out = append(out, x.(float64))
		}
		return out
	}
	length := func(v []float64) float64 {
		s := 0.0
		for _, x := range v {
			s += x * x
		}
		return math.Sqrt(s)
	}
	width := openModel(t).Engine.Model().Config().Embd
	var first []float64
	for i, d := range data {
		o := d.(m)
		v := vector(o["embedding"])
		if o["object"] != "embedding" || o["index"] != float64(i) || len(v) != width || math.Abs(length(v)-1) > 1e-5 {
			t.Errorf("vector %d: %d values of length %g", i, len(v), length(v))
		}
		if i == 0 {
			first = v
		}
	}
	raw, err := base64.StdEncoding.DecodeString(h.ok("/v1/embeddings", m{"input": "One text.", "encoding_format": "base64"}).json["data"].([]any)[0].(m)["embedding"].(string))
	if err != nil || len(raw) != 4*width {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	for i := range first {
		if x := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])); x != float32(first[i]) {
			t.Fatalf("value %d is %g in base64 and %g else", i, x, first[i])
		}
	}
	native := func(h *host, body m) []any {
		t.Helper()
		r := h.call("POST", "/embedding", body)
		if r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		var list []any
		if err := json.Unmarshal([]byte(r.body), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	one := native(h, m{"content": "One text.", "embd_normalize": -1})[0].(m)["embedding"].([]any)
	if len(one) != 1 || math.Abs(length(vector(one[0]))-1) < 1e-3 {
		t.Errorf("not normalised: %d vectors of length %g", len(one), length(vector(one[0])))
	}
	for _, c := range []struct {
		path string
		body m
		say  string
	}{
		{"/v1/embeddings", m{"input": ""}, "no tokens"}, {"/v1/embeddings", m{}, "input"}, {"/v1/embeddings", m{"input": "a", "encoding_format": "hex"}, "hex"},
		{"/embedding", m{"content": "a", "embd_normalize": 9}, "embd_normalize"}, {"/v1/embeddings", m{"input": []int{1, 1 << 30}}, "invalid tokens"},
	} {
		if say := h.call("POST", c.path, c.body).wantError(t, 400, "invalid_request_error"); !strings.Contains(say, c.say) {
			t.Errorf("%v: %q", c.body, say)
		}
	}
	h.call("POST", "/v1/embeddings", m{"input": strings.Repeat("long ", 4000)}).wantError(t, 400, "exceed_context_size_error")

	none, last := engine.PoolNone, engine.PoolLast
	h = newHost(t, Options{Embed: true, Pooling: &none})
	h.call("POST", "/v1/embeddings", m{"input": "a"}).wantError(t, 400, "invalid_request_error")
	all := native(h, m{"content": "One text."})[0].(m)["embedding"].([]any)
	h = newHost(t, Options{Embed: true, Pooling: &last})
	end := native(h, m{"content": "One text.", "embd_normalize": -1})[0].(m)["embedding"].([]any)
	a, b := vector(all[len(all)-1]), vector(end[0])
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("the last of %d vectors is another than that of the last token", len(all))
		}
	}
}
