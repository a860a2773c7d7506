package tokenizer

// preTokenizer is what the file's `tokenizer.ggml.pre` stands for.
type preTokenizer struct {
	split        splitter
	ignoreMerges bool // a piece that is a token is taken whole
	addBOS       bool // the default of add_bos_token
	noBOS        bool // the family has no beginning token, whatever the default says
	glm          bool // turn tokens end the generation
	spaced       bool // tokens are plain UTF-8 with U+2581 for a space, not printable bytes
	forceBOS     bool // a beginning token is added whatever the file says
	ranked       bool // a file without merges is one whose merges follow from the order of its tokens
}

// preTokenizers maps every supported name. The patterns stand with the splitters.
var preTokenizers = func() map[string]preTokenizer {
	m := map[string]preTokenizer{"default": {split: defaultSplitter{}}}
	add := func(p preTokenizer, names ...string) {
		for _, n := range names {
			m[n] = p
		}
	}
	add(preTokenizer{split: gpt2Splitter{}},
		"gpt-2", "olmo", "mpt", "phi-2", "jais", "exaone4", "mellum", "modern-bert", "gigachat", "a.x-4.0", "trillion", "granite-docling")
	add(preTokenizer{split: wordSplitter{maxDigits: 1}},
		"qwen2", "deepseek-r1-qwen", "megrez", "hunyuan", "solar-open", "stablelm2", "grok-2", "kormo", "f2llmv2",
		"bailingmoe", "bailingmoe2", "llada-moe")
	add(preTokenizer{split: wordSplitter{maxDigits: 1, marks: true}}, "qwen35")
	add(preTokenizer{split: wordSplitter{maxDigits: 1, bare: true}}, "seed-coder")
	add(preTokenizer{split: wordSplitter{maxDigits: 3}, ignoreMerges: true, addBOS: true},
		"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0")
	add(preTokenizer{split: wordSplitter{maxDigits: 3}, noBOS: true, glm: true}, "glm4", "chatglm-bpe")
	add(preTokenizer{split: wordSplitter{maxDigits: 3}}, "dbrx", "smaug-bpe")
	add(preTokenizer{split: lagunaSplitter{}}, "laguna")
	add(preTokenizer{split: miniCPM5, ignoreMerges: true}, "minicpm5")

	add(preTokenizer{split: casedSplitter{contractions: true, maxDigits: 3, slash: true}},
		"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")
	add(preTokenizer{split: casedSplitter{maxDigits: 1, slash: true, marks: mark}, ignoreMerges: true, addBOS: true}, "tekken")
	add(preTokenizer{split: casedSplitter{contractions: true, maxDigits: 3, apart: han, marks: mark}, ranked: true}, "kimi-k2")

	add(preTokenizer{split: deepseekSplitter{}}, "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")
	add(preTokenizer{split: deepseekLLM}, "deepseek-llm")
	add(preTokenizer{split: deepseekCoder}, "deepseek-coder")

	add(preTokenizer{split: starcoder},
		"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2")
	add(preTokenizer{split: falcon}, "falcon")

	add(preTokenizer{split: spacedSplitter{lines: true}, spaced: true, forceBOS: true}, "gemma4", "granite-embed-multi-311m")
	return m
}()
