package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/engine"
	"terrace/internal/testfile"
)

// raised unpacks a fixture and has it say that it was made for a context of n tokens.
func raised(t *testing.T, name string, n uint32) string {
	t.Helper()
	b := testfile.Gunzip(t, filepath.Join("../testdata/golden", name, "model.drawn.gz"))
	key := []byte(".context_length")
	at := bytes.Index(b, key) + len(key)
	if at < len(key) || binary.LittleEndian.Uint32(b[at:]) != 4 {
		t.Fatalf("%s has no context_length of 32 bits", name)
	}
	binary.LittleEndian.PutUint32(b[at+4:], n)
	path := filepath.Join(t.TempDir(), name+".gguf")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// keeper is a server whose prompts are kept in a folder, which may be started again.
type keeper struct {
	*host
	path, dir string
	eng       *engine.Engine
	sched     *engine.Scheduler
	cache     *engine.PromptCache
	http      *httptest.Server
}

func newKeeper(t *testing.T, path string) *keeper {
	k := &keeper{path: path, dir: t.TempDir()}
	k.start(t)
	t.Cleanup(k.stop)
	return k
}

func (k *keeper) start(t *testing.T) {
	t.Helper()
	var err error
	if k.eng, err = engine.Open(engine.Options{Path: k.path, Context: engine.ContextMost, Slots: 2, CacheRAM: 96 << 20, RAM: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if k.cache, err = k.eng.NewPromptCache(engine.PromptCacheOptions{Dir: k.dir}); err != nil {
		t.Fatal(err)
	}
	if k.sched, err = k.eng.NewScheduler(engine.SchedulerOptions{Slots: 2, Cache: k.cache, SaveDir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(&Model{Engine: k.eng, Scheduler: k.sched, Alias: "kept"}); err != nil {
		t.Fatal(err)
	}
	k.http = httptest.NewServer(s)
	k.host = &host{T: t, s: s, url: k.http.URL}
}

func (k *keeper) stop() {
	ctx := context.Background()
	k.s.Close()
	k.http.Close()
	if err := k.sched.Close(ctx); err != nil {
		k.Error(err)
	}
	if err := k.cache.Close(ctx); err != nil {
		k.Error(err)
	}
	if err := k.eng.Close(); err != nil {
		k.Error(err)
	}
}

// TestConversation is a conversation of 4K tokens over HTTP that is sent again with one more question, to the same slot, to one that
// has served others, and to a server that was started again. Only what is new is evaluated, and replies say so; models with
// recurrent state evaluate at most an interval of snapshots more where a question was changed. What goes to disk in a turn is little more than
// what is new in the state, and no answer is another than one without a cache.
func TestConversation(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	const length, question, predict, interval = 4096, 30, 12, 256
	for _, name := range []string{"qwen3moe", "gpt-oss", "qwen3next", "lfm2moe"} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t, raised(t, name, 16384))
			if n := k.call("GET", "/props", nil).json["default_generation_settings"].(m)["n_ctx"].(float64); n < 2*length {
				t.Fatalf("the context is %g", n)
			}
			r := rand.New(rand.NewPCG(11, 1))
			random := func(n int) []int32 {
				out := make([]int32, n)
				for i := range out {
					out[i] = int32(r.IntN(300))
				}
				return out
			}
			z := k.eng.Model().StateSize(k.eng.Options().KeyType, k.eng.Options().ValType)
			token, snapshot := z.Token+z.Index, z.Recurrent+z.Conv
			var talk []int32
			held := 0 // tokens of the talk that were evaluated before
			ask := func(what string, most, snapshots int) {
				t.Helper()
				k.cache.Flush()
				before := k.cache.Stats().Written
				body := m{"prompt": talk, "n_predict": predict, "temperature": 0, "ignore_eos": true, "return_tokens": true}
				v := k.ok("/completion", body).json
				tm := v["timings"].(m)
				evaluated, cached := int(tm["prompt_n"].(float64)), int(tm["cache_n"].(float64))
				if evaluated > most || evaluated+cached != len(talk) || int(v["tokens_evaluated"].(float64)) != len(talk) {
					t.Errorf("%s: %d tokens of %d evaluated and %d cached, at most %d wanted", what, evaluated, len(talk), cached, most)
				}
				// The scheduler keeps a turn after it was answered, and before it does anything else.
				if _, err := k.sched.SaveSlot(t.Context(), int(v["id_slot"].(float64)), "turn.bin"); err != nil {
					t.Fatal(err)
				}
				k.cache.Flush()
				wrote := k.cache.Stats().Written - before
				state := int64(len(talk)+predict-held)*token + int64(snapshots)*snapshot
				if snapshot == 0 {
					state = int64(len(talk)+predict-held) * token
				}
				t.Logf("%s: %d of %d tokens evaluated; %d bytes written, %d new in the state, %.3f", what, evaluated, len(talk), wrote, state, float64(wrote)/float64(state))
				if float64(wrote) > 1.2*float64(state) {
					t.Errorf("%s: %d bytes written, the new state has %d", what, wrote, state)
				}
				body["cache_prompt"] = false
				var answer []int32
				for _, id := range v["tokens"].([]any) {
					answer = append(answer, int32(id.(float64)))
				}
				if plain := k.ok("/completion", body).json; len(answer) != predict || !slices.Equal(plain["tokens"].([]any), v["tokens"].([]any)) {
					t.Errorf("%s: answer %v, without a cache %v", what, v["tokens"], plain["tokens"])
				}
				talk = append(talk, answer...)
				held = len(talk)
			}
			others := func() { // both slots serve somebody else
				for range 2 {
					k.ok("/completion", m{"prompt": random(300), "n_predict": 1})
				}
				k.cache.Flush()
			}
			talk = random(length)
			ask("the first turn", length, length/interval+2)
			talk = append(talk, random(question)...)
			ask("one more question", question+1, 1)
			others()
			talk = append(talk, random(question)...)
			ask("after other clients", question+1, 1)
			k.stop()
			k.start(t)
			talk = append(talk, random(question)...)
			ask("after a restart", question+1, 1)
			extra := 0
			if snapshot > 0 {
				extra = interval
			}
			held = len(talk) - predict - question
			talk = append(slices.Clone(talk[:held]), random(question)...)
			ask("the last question edited", question+1+extra, 1)
			others()
			held = length/2 + 77
			talk = append(slices.Clone(talk[:held]), random(question)...)
			ask("edited in the middle", question+1+extra, 2)
			k.stop()
			k.start(t)
			held -= 300
			talk = append(slices.Clone(talk[:held]), random(question)...)
			ask("edited again, after a restart", question+1+extra, 2)
		})
	}
}

// TestConversationChat is the same in the dialect of chats, whose usage says what was cached.
func TestConversationChat(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	for _, name := range []string{"qwen3moe", "qwen3next"} {
		k := newKeeper(t, raised(t, name, 16384))
		ms := []any{m{"role": "system", "content": "Be brief."}}
		for i := range 10 {
			ms = append(ms, m{"role": "user", "content": strings.Repeat(string(rune('a'+i))+" question of some length. ", 9)},
				m{"role": "assistant", "content": strings.Repeat("An answer to it, number "+string(rune('0'+i))+". ", 7)})
		}
		ms = append(ms, m{"role": "user", "content": "And what else?"})
		before := 0
		ask := func(what string) {
			t.Helper()
			v := k.ok("/v1/chat/completions", m{"messages": ms, "max_tokens": 8, "temperature": 0}).json
			u, tm := v["usage"].(m), v["timings"].(m)
			prompt, cached := int(u["prompt_tokens"].(float64)), int(u["prompt_tokens_details"].(m)["cached_tokens"].(float64))
			if cached != int(tm["cache_n"].(float64)) || prompt-cached != int(tm["prompt_n"].(float64)) {
				t.Errorf("%s, %s: usage %v, timings %v", name, what, u, tm)
			}
			least := before - 16 // the beginning of the answer may be another than what the client sends for it
			if name == "qwen3next" && what == "a restart" {
				least = before - 256 // snapshots shortly before the ends of prompts are in RAM alone
			}
			if cached < least {
				t.Errorf("%s, %s: %d of %d tokens cached, at least %d wanted", name, what, cached, prompt, least)
			}
			t.Logf("%s, %s: %d of %d tokens cached", name, what, cached, prompt)
			before = prompt
			ms = append(ms, m{"role": "assistant", "content": "Nothing else."}, m{"role": "user", "content": "Are you sure of " + what + "?"})
		}
		ask("the first turn")
		if before < 3000 {
			t.Fatalf("%s: a prompt of %d tokens", name, before)
		}
		ask("one more question")
		k.stop()
		k.start(t)
		ask("a restart")
	}
}
