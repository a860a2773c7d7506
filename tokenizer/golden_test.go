package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

type goldenCase struct {
	Name    string  `json:"name"`
	Hex     string  `json:"hex"`
	IDs     []int32 `json:"ids"`
	Parsed  []int32 `json:"ids_parse_special"`
	Added   []int32 `json:"ids_add_special"`
	Decoded string  `json:"detokenized_hex"`
}

func goldenCases(t testing.TB, path string) []goldenCase {
	t.Helper()
	var cases []goldenCase
	lines := bufio.NewScanner(bytes.NewReader(unpack(t, path)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c goldenCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if lines.Err() != nil || len(cases) < 100 {
		t.Fatalf("%s: %d cases, %v", path, len(cases), lines.Err())
	}
	return cases
}

// golden lists the vocabularies that llama.cpp has answered for.
var golden = []string{qwen3, deepseek, gptoss, mistral}

func casesOf(t testing.TB, vocab string) []goldenCase {
	return goldenCases(t, strings.TrimSuffix(vocab, ".gguf.gz")+".jsonl.gz")
}

// TestGolden compares with llama.cpp on every case, twice: the second round is answered by the piece cache.
func TestGolden(t *testing.T) {
	for _, vocab := range golden {
		t.Run(path.Base(vocab), func(t *testing.T) {
			tok := load(t, vocab)
			for round := range 2 {
				for _, c := range casesOf(t, vocab) {
					checkGolden(t, tok, round, c)
				}
			}
		})
	}
}

func checkGolden(t *testing.T, tok *Tokenizer, round int, c goldenCase) {
	b, err := hex.DecodeString(c.Hex)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if got := tok.Encode(nil, text, false, false); !slices.Equal(got, c.IDs) {
		t.Errorf("round %d, %s: %v, want %v", round, c.Name, got, c.IDs)
	}
	if got := tok.Encode(nil, text, false, true); !slices.Equal(got, c.Parsed) {
		t.Errorf("round %d, %s, special tokens parsed: %v, want %v", round, c.Name, got, c.Parsed)
	}
	if got := tok.Encode(nil, text, true, true); !slices.Equal(got, c.Added) {
		t.Errorf("round %d, %s, special tokens added: %v, want %v", round, c.Name, got, c.Added)
	}
	// A prompt that begins with the beginning token, as templates render it, gets no second one.
	added := c.Added
	if len(added) > 1 && tok.AddBOS() && added[1] == tok.BOS() {
		added = added[1:]
	}
	if got := tok.EncodeParts(nil, []Part{{text, true}}, true); !slices.Equal(got, added) {
		t.Errorf("round %d, %s, as a template part: %v, want %v", round, c.Name, got, added)
	}
	// In text from outside, tokens that the output shows but that control the model are plain as well.
	user := c.IDs
	if slices.ContainsFunc(user, func(id int32) bool { return tok.kind[id]&guarded != 0 }) {
		user = nil
	}
	if got := tok.EncodeParts(nil, []Part{{text, false}}, false); user != nil && !slices.Equal(got, user) {
		t.Errorf("round %d, %s, as a user part: %v, want %v", round, c.Name, got, user)
	} else if slices.ContainsFunc(got, func(id int32) bool { return tok.kind[id]&guarded != 0 }) {
		t.Errorf("round %d, %s, as a user part: %v has a token that controls the model", round, c.Name, got)
	}
	if got := hex.EncodeToString(tok.Decode(c.IDs, false)); got != c.Decoded {
		t.Errorf("round %d, %s: decoded %s, want %s", round, c.Name, got, c.Decoded)
	}
	if got := tok.Encode([]int32{-7}, text, false, false); got[0] != -7 || !slices.Equal(got[1:], c.IDs) {
		t.Errorf("round %d, %s: does not append", round, c.Name)
	}
}

// TestConcurrent has several goroutines share one tokenizer.
func TestConcurrent(t *testing.T) {
	for _, vocab := range []string{qwen3, mistral} {
		tok := load(t, vocab)
		cases := casesOf(t, vocab)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range cases {
					c := cases[(i+g*31)%len(cases)]
					b, _ := hex.DecodeString(c.Hex)
					if got := tok.Encode(nil, string(b), false, true); !slices.Equal(got, c.Parsed) {
						t.Errorf("%s: %v, want %v", c.Name, got, c.Parsed)
					}
				}
			}()
		}
		wg.Wait()
	}
}

// TestRoles: what real files make of their special tokens.
func TestRoles(t *testing.T) {
	for _, c := range []struct {
		vocab                string
		size                 int
		bos, eos, eot        int32
		addBOS               bool
		eog, visible, hidden []string
	}{
		{deepseek, 128815, 0, 1, 1, true, []string{"<｜end▁of▁sentence｜>"}, []string{"<｜User｜>", "<｜Assistant｜>"},
			[]string{"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"}},
		{gptoss, 201088, 199998, 200002, 200007, false, []string{"<|endoftext|>", "<|return|>", "<|call|>"},
			[]string{"<|end|>", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}, []string{"<|return|>", "<|call|>", "<|startoftext|>"}},
		{mistral, 32000, 1, 2, -1, true, []string{"</s>"}, nil, []string{"<s>", "</s>", "<unk>"}},
	} {
		tok := load(t, c.vocab)
		if tok.Vocab() != c.size || tok.BOS() != c.bos || tok.EOS() != c.eos || tok.EOT() != c.eot || tok.AddBOS() != c.addBOS || tok.AddEOS() {
			t.Errorf("%s: vocabulary %d, bos %d, eos %d, eot %d, add %v %v", c.vocab, tok.Vocab(), tok.BOS(), tok.EOS(), tok.EOT(), tok.AddBOS(), tok.AddEOS())
		}
		var eog []string
		for _, id := range tok.EOG() {
			eog = append(eog, tok.Text(id))
		}
		slices.Sort(eog)
		slices.Sort(c.eog)
		if !slices.Equal(eog, c.eog) {
			t.Errorf("%s: end of generation %q, want %q", c.vocab, eog, c.eog)
		}
		for _, s := range c.visible {
			if id, ok := tok.Lookup(s); !ok || tok.IsControl(id) || string(tok.Piece(id)) != s {
				t.Errorf("%s: %s (%d) is not in the output", c.vocab, s, id)
			}
		}
		for _, s := range c.hidden {
			if id, ok := tok.Lookup(s); !ok || !tok.IsControl(id) || len(tok.Piece(id)) != 0 {
				t.Errorf("%s: %s (%d) is in the output", c.vocab, s, id)
			}
		}
	}
}

func TestQwen3Roles(t *testing.T) {
	tok := load(t, qwen3)
	if tok.Vocab() != 151936 || tok.BOS() != -1 || tok.EOS() != 151645 || tok.EOT() != 151645 || tok.AddBOS() || tok.AddEOS() {
		t.Errorf("vocabulary %d, bos %d, eos %d, eot %d, add %v %v", tok.Vocab(), tok.BOS(), tok.EOS(), tok.EOT(), tok.AddBOS(), tok.AddEOS())
	}
	eog := tok.EOG()
	slices.Sort(eog)
	// </s> (an ordinary token of the file), <|endoftext|>, <|im_end|>, <|fim_pad|>, <|repo_name|>, <|file_sep|>
	if want := []int32{128247, 151643, 151645, 151662, 151663, 151664}; !slices.Equal(eog, want) {
		t.Errorf("end of generation %v, want %v", eog, want)
	}
	for id := range int32(tok.Vocab()) {
		if k, ok := tok.Lookup(tok.Text(id)); !ok || k != id {
			t.Fatalf("Lookup(%q) = %d %v, want %d", tok.Text(id), k, ok, id)
		}
	}
	if _, ok := tok.Lookup("no such token"); ok {
		t.Error("found a token that is not there")
	}
	if tok.Text(0) != "!" || tok.Text(-1) != "" || tok.Text(151936) != "" || tok.Piece(151936) != nil || tok.IsControl(-1) {
		t.Error("ids at and beyond the edge of the vocabulary")
	}
	think, _ := tok.Lookup("<think>")
	end := int32(151645)
	if string(tok.Piece(think)) != "<think>" || tok.IsControl(think) || len(tok.Piece(end)) != 0 || !tok.IsControl(end) {
		t.Error("user-defined tokens have text, control tokens do not")
	}
	if got := string(tok.Decode([]int32{think, end, 0}, true)); got != "<think><|im_end|>!" {
		t.Errorf("Decode with special tokens gives %q", got)
	}
}

// TestTinyMoe encodes the prompts of the demo model's reference run.
func TestTinyMoe(t *testing.T) {
	tok := load(t, "tiny-moe-Q4_K.gguf")
	var golden struct {
		Prompts []struct {
			Prompt          string  `json:"prompt"`
			PromptIDs       []int32 `json:"prompt_ids"`
			ContinuationIDs []int32 `json:"continuation_ids"`
			Continuation    string  `json:"continuation"`
		} `json:"prompts"`
	}
	if err := json.Unmarshal(unpack(t, "tiny-moe/golden.json"), &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Prompts) == 0 {
		t.Fatal("no prompts")
	}
	for _, p := range golden.Prompts {
		if got := tok.Encode(nil, p.Prompt, true, true); !slices.Equal(got, p.PromptIDs) {
			t.Errorf("%q: %v, want %v", p.Prompt, got, p.PromptIDs)
		}
		plain, special := string(tok.Decode(p.ContinuationIDs, false)), string(tok.Decode(p.ContinuationIDs, true))
		if plain != p.Continuation && special != p.Continuation {
			t.Errorf("continuation %q or %q, want %q", plain, special, p.Continuation)
		}
	}
}

func TestToyVocabulary(t *testing.T) {
	tok := load(t, toyVocab)
	if tok.Vocab() != 320 || tok.BOS() != 288 || tok.EOS() != 290 || tok.EOT() != 290 || tok.AddBOS() {
		t.Errorf("vocabulary %d, bos %d, eos %d, eot %d, add %v", tok.Vocab(), tok.BOS(), tok.EOS(), tok.EOT(), tok.AddBOS())
	}
	text := "<|im_start|>user\nthe end<|im_end|>\n<think>"
	ids := tok.Encode(nil, text, true, true)
	var spelled []string
	for _, id := range ids {
		spelled = append(spelled, tok.Text(id))
	}
	want := []string{"<|im_start|>", "u", "s", "er", "Ċ", "the", "Ġ", "en", "d", "<|im_end|>", "Ċ", "<think>"}
	if !slices.Equal(spelled, want) {
		t.Errorf("%q, want %q", spelled, want)
	}
	if got := string(tok.Decode(ids, true)); got != text {
		t.Errorf("decoded %q", got)
	}
	if got := string(tok.Decode(ids, false)); got != "user\nthe end\n<think>" {
		t.Errorf("decoded without special tokens %q", got)
	}
}
