package synth

import "slices"

// shape is the geometry of a published model. Widths and lengths are elements; fields that an architecture lacks are zero.
type shape struct {
	arch                           string
	layers, hidden, vocab, context int

	heads, kv        int // query heads, key and value heads
	keyDim, valDim   int // of a head; valDim 0: keyDim
	rot              int // rotated elements of a head; 0: all
	base, eps        float32
	sections         []int32 // of a rotation by three positions
	yarnFactor       float32
	yarnContext      int
	yarnLog          float32
	window           int
	qkBias, fusedQKV bool
	qkNorm           normKind

	ff                          int // of a dense feed-forward
	experts, topK, expertFF     int
	shared                      int // width of all shared experts together
	sharedCount, leading        int
	gating, groups, groupsUsed  int
	probsBias, renorm, normKey  bool // a selection bias; weights made to sum to one, and the key that says so
	scale                       float32
	sharedGate, merged, ffnBias bool
	tied, mtp                   bool // mtp: published files may carry a block for drafting

	// Layers with a state: every fullEvery-th has attention, the others a gated DeltaNet.
	fullEvery, conv, stateDim, groupCount, timeRank int
	jointBA                                         bool

	// Multi-head latent attention.
	qRank, kvRank, nope int
	splitKV             bool // attn_k_b and attn_v_b, the cache is one latent head

	// qwen4exp.
	streams, lowRank                              int
	indexHeads, indexDim, indexTop, compress      int
	pleLayer, ngram, perGram, pleConv, tableWidth int
	tableRows                                     uint64 // after padding
	multipliers, headSizes                        []uint64
	eos, image                                    int

	// gemma4.
	kvFull, keyDimSWA int
	softcap           float32

	// granitemoe.
	embdScale, residScale, logitScale, attnScale float32

	// lfm2moe: layers with attention, the others are short convolutions. nemotron_h_moe: one letter a layer.
	attnAt []int
	plan   string
	inner  int // of Mamba-2
}

type normKind int

const (
	noNorm   normKind = iota
	headNorm          // one weight for all heads
	fullNorm          // a weight for the whole projection
)

// Family is a published model whose geometry can be written.
type Family struct {
	Name  string // as New takes it
	Title string
	Arch  string // general.architecture
	shape shape
}

// Families lists what can be written, in the order of their architectures.
func Families() []Family {
	list := slices.Clone(families)
	for i := range list {
		list[i].Arch = list[i].shape.arch
	}
	return list
}

func qwen3(layers, hidden, heads, expertFF, ff int) shape {
	return shape{arch: "qwen3moe", layers: layers, hidden: hidden, vocab: 151936, context: 40960, heads: heads, kv: 4, keyDim: 128, base: 1e6, eps: 1e-6, qkNorm: headNorm,
		ff: ff, experts: 128, topK: 8, expertFF: expertFF}
}

// qwenNext is the hybrid of DeltaNet and gated attention; nv its value heads.
func qwenNext(arch string, layers, hidden, heads, experts, topK, ff, nv int) shape {
	s := shape{arch: arch, layers: layers, hidden: hidden, vocab: 151936, context: 262144, heads: heads, kv: 2, keyDim: 256, rot: 64, base: 1e7, eps: 1e-6, qkNorm: headNorm,
		ff: 4 * hidden, experts: experts, topK: topK, expertFF: ff, shared: ff, sharedGate: true,
		fullEvery: 4, conv: 4, stateDim: 128, groupCount: 16, timeRank: nv, jointBA: arch == "qwen3next"}
	if arch != "qwen3next" {
		s.vocab, s.sections, s.mtp = 248320, []int32{11, 11, 10, 0}, true
	}
	return s
}

func flashNext() shape {
	s := qwenNext("qwen4exp", 48, 2560, 24, 512, 10, 640, 48)
	s.streams, s.lowRank = 4, 320
	s.indexHeads, s.indexDim, s.indexTop, s.compress = 4, 128, 2048, 4
	s.pleLayer, s.ngram, s.perGram, s.pleConv, s.tableWidth, s.tableRows = 1, 3, 8, 4, 160, 320001536
	s.multipliers = []uint64{23703573157769, 20109073645365, 8052911324071}
	s.headSizes = []uint64{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}
	s.eos, s.image = 248044, 248056
	return s
}

func gptOSS(layers, experts int) shape {
	return shape{arch: "gpt-oss", layers: layers, hidden: 2880, vocab: 201088, context: 131072, heads: 64, kv: 8, keyDim: 64, base: 150000, eps: 1e-5, yarnFactor: 32, yarnContext: 4096,
		window: 128, qkBias: true, ff: 2880, experts: experts, topK: 4, expertFF: 2880, ffnBias: true}
}

func glm4(layers, hidden, experts, leading, ff, expertFF int, scale float32, norm normKind) shape {
	return shape{arch: "glm4moe", layers: layers, hidden: hidden, vocab: 151552, context: 131072, heads: 96, kv: 8, keyDim: 128, rot: 64, base: 1e6, eps: 1e-5, qkBias: true, qkNorm: norm,
		ff: ff, experts: experts, topK: 8, expertFF: expertFF, shared: expertFF, sharedCount: 1, leading: leading, gating: 2, probsBias: true, renorm: true, normKey: true, scale: scale, mtp: true}
}

// deepseek has latent attention with heads of nope + 64 elements.
func deepseek(layers, hidden, heads, qRank, nope, valDim, vocab int) shape {
	return shape{arch: "deepseek2", layers: layers, hidden: hidden, vocab: vocab, context: 163840, heads: heads, kv: 1, qRank: qRank, kvRank: 512, nope: nope, valDim: valDim, rot: 64, splitKV: true,
		base: 10000, eps: 1e-6, normKey: true}
}

var families = []Family{
	{Name: "qwen3-30b-a3b", Title: "Qwen3-30B-A3B", shape: qwen3(48, 2048, 32, 768, 6144)},
	{Name: "qwen3-235b-a22b", Title: "Qwen3-235B-A22B", shape: qwen3(94, 4096, 64, 1536, 12288)},
	{Name: "qwen3-next-80b-a3b", Title: "Qwen3-Next-80B-A3B", shape: qwenNext("qwen3next", 48, 2048, 16, 512, 10, 512, 32)},
	{Name: "qwen3.5-35b-a3b", Title: "Qwen3.5-35B-A3B", shape: qwenNext("qwen35moe", 40, 2048, 16, 256, 8, 512, 32)},
	{Name: "qwen3.5-122b-a10b", Title: "Qwen3.5-122B-A10B", shape: qwenNext("qwen35moe", 48, 3072, 32, 256, 8, 1024, 64)},
	{Name: "qwen3.5-397b-a17b", Title: "Qwen3.5-397B-A17B", shape: qwenNext("qwen35moe", 60, 4096, 32, 512, 10, 1024, 64)},
	{Name: "qwen3.8-flash-next", Title: "Qwen3.8-Flash-Next", shape: flashNext()},
	{Name: "gpt-oss-20b", Title: "gpt-oss-20b", shape: gptOSS(24, 32)},
	{Name: "gpt-oss-120b", Title: "gpt-oss-120b", shape: gptOSS(36, 128)},
	{Name: "glm-4.5-air", Title: "GLM-4.5-Air", shape: glm4(46, 4096, 128, 1, 10944, 1408, 1, noNorm)},
	{Name: "glm-4.6", Title: "GLM-4.6", shape: glm4(92, 5120, 160, 3, 12288, 1536, 2.5, headNorm)},
	{Name: "glm-4.7-flash", Title: "GLM-4.7-Flash", shape: func() shape {
		s := deepseek(47, 2048, 20, 768, 192, 256, 154880)
		s.base, s.eps, s.context = 1e6, 1e-5, 202752
		s.ff, s.leading, s.experts, s.topK, s.expertFF, s.shared, s.sharedCount = 10240, 1, 64, 4, 1536, 1536, 1
		s.gating, s.probsBias, s.renorm, s.scale, s.groups, s.groupsUsed = 2, true, true, 1.8, 1, 1
		return s
	}()},
	{Name: "deepseek-v2-lite", Title: "DeepSeek-V2-Lite", shape: func() shape {
		s := deepseek(27, 2048, 16, 0, 128, 128, 102400)
		s.yarnFactor, s.yarnContext, s.yarnLog = 40, 4096, 0.0707
		s.ff, s.leading, s.experts, s.topK, s.expertFF, s.shared, s.sharedCount = 10944, 1, 64, 6, 1408, 2816, 2
		s.gating, s.scale = 1, 1
		return s
	}()},
	{Name: "deepseek-v3", Title: "DeepSeek-V3", shape: func() shape {
		s := deepseek(61, 7168, 128, 1536, 128, 128, 129280)
		s.yarnFactor, s.yarnContext, s.yarnLog = 40, 4096, 0.1
		s.ff, s.leading, s.experts, s.topK, s.expertFF, s.shared, s.sharedCount = 18432, 3, 256, 8, 2048, 2048, 1
		s.gating, s.probsBias, s.renorm, s.scale, s.groups, s.groupsUsed = 2, true, true, 2.5, 8, 4
		return s
	}()},
	{Name: "mixtral-8x7b", Title: "Mixtral-8x7B", shape: shape{arch: "llama", layers: 32, hidden: 4096, vocab: 32000, context: 32768, heads: 32, kv: 8, keyDim: 128, base: 1e6, eps: 1e-5,
		experts: 8, topK: 2, expertFF: 14336}},
	{Name: "olmoe-1b-7b", Title: "OLMoE-1B-7B", shape: shape{arch: "olmoe", layers: 16, hidden: 2048, vocab: 50304, context: 4096, heads: 16, kv: 16, keyDim: 128, base: 10000, eps: 1e-5,
		qkNorm: fullNorm, experts: 64, topK: 8, expertFF: 1024}},
	{Name: "qwen1.5-moe-a2.7b", Title: "Qwen1.5-MoE-A2.7B", shape: shape{arch: "qwen2moe", layers: 24, hidden: 2048, vocab: 151936, context: 8192, heads: 16, kv: 16, keyDim: 128, base: 1e6, eps: 1e-6,
		qkBias: true, ff: 5632, experts: 60, topK: 4, expertFF: 1408, shared: 5632, sharedGate: true}},
	{Name: "gemma-4-26b-a4b", Title: "gemma-4-26B-A4B", shape: shape{arch: "gemma4", layers: 30, hidden: 2816, vocab: 262144, context: 262144, heads: 16, kv: 8, kvFull: 2, keyDim: 512, keyDimSWA: 256,
		base: 1e6, eps: 1e-6, qkNorm: headNorm, window: 1024, fullEvery: 6, softcap: 30, ff: 2112, experts: 128, topK: 8, expertFF: 704, merged: true, tied: true}},
	{Name: "minimax-m2", Title: "MiniMax-M2", shape: shape{arch: "minimax-m2", layers: 62, hidden: 3072, vocab: 200064, context: 196608, heads: 48, kv: 8, keyDim: 128, rot: 64, base: 5e6, eps: 1e-6,
		qkNorm: fullNorm, experts: 256, topK: 8, expertFF: 1536, gating: 2, probsBias: true}},
	{Name: "granite-3.1-3b-a800m", Title: "Granite-3.1-3B-A800M", shape: shape{arch: "granitemoe", layers: 32, hidden: 1536, vocab: 49155, context: 131072, heads: 24, kv: 8, keyDim: 64, base: 1e7, eps: 1e-6,
		experts: 40, topK: 8, expertFF: 512, tied: true, embdScale: 12, residScale: 0.22, logitScale: 6, attnScale: 0.015625}},
	{Name: "ernie-4.5-21b-a3b", Title: "ERNIE-4.5-21B-A3B", shape: shape{arch: "ernie4_5-moe", layers: 28, hidden: 2560, vocab: 103424, context: 131072, heads: 20, kv: 4, keyDim: 128, base: 500000, eps: 1e-5,
		ff: 12288, leading: 1, experts: 64, topK: 6, expertFF: 1536, shared: 3072, probsBias: true, tied: true}},
	{Name: "lfm2.5-8b-a1b", Title: "LFM2.5-8B-A1B", shape: shape{arch: "lfm2moe", layers: 24, hidden: 2048, vocab: 65536, context: 128000, heads: 32, kv: 8, keyDim: 64, base: 5e6, eps: 1e-5,
		qkNorm: headNorm, ff: 7168, leading: 2, experts: 32, topK: 4, expertFF: 1792, gating: 2, probsBias: true, tied: true, conv: 3, attnAt: []int{2, 6, 10, 14, 18, 21}}},
	{Name: "nemotron-3-nano-30b-a3b", Title: "Nemotron-3-Nano-30B-A3B", shape: shape{arch: "nemotron_h_moe", layers: 52, hidden: 2688, vocab: 131072, context: 1048576, heads: 32, kv: 2, keyDim: 128, base: 10000, eps: 1e-5,
		experts: 128, topK: 6, expertFF: 1856, shared: 3712, sharedCount: 1, gating: 2, probsBias: true, renorm: true, normKey: true, scale: 2.5,
		plan: "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", conv: 4, stateDim: 128, groupCount: 8, timeRank: 64, inner: 4096}},
	{Name: "ling-mini-2.0", Title: "Ling-mini-2.0", shape: shape{arch: "bailingmoe2", layers: 20, hidden: 2048, vocab: 157184, context: 32768, heads: 16, kv: 4, keyDim: 128, rot: 64, base: 600000, eps: 1e-6,
		qkNorm: headNorm, fusedQKV: true, ff: 5120, leading: 1, experts: 256, topK: 8, expertFF: 512, shared: 512, sharedCount: 1,
		gating: 2, probsBias: true, renorm: true, normKey: true, scale: 2.5, groups: 8, groupsUsed: 4}},
}
