package plan

import (
	"fmt"
	"math"
)

// Terms are the seconds of one decoded token.
type Terms struct {
	Token   float64 `json:"token_s"`   // all of it
	Memory  float64 `json:"memory_s"`  // weight bytes over memory bandwidth
	Compute float64 `json:"compute_s"` // weight bytes over the kernels' rates from cache
	Work    float64 `json:"work_s"`    // arithmetic as it goes: both of these, a layer's own costs, and what reading beside it takes
	Disk    float64 `json:"disk_s"`    // bytes read over the sustained rate
	Wait    float64 `json:"wait_s"`    // for reads that arithmetic does not hide, at the burst rate
	GPU     float64 `json:"gpu_s"`
	Read    int64   `json:"read_bytes"`
}

// hits are the shares of a token's experts that are found in VRAM, and in RAM or VRAM.
type hits struct{ vram, all float64 }

func (h *hits) shift(by float64) {
	if h.all < 1 { // where everything is resident there is nothing to be unsure about
		h.all = max(0, min(1, h.all+by))
	}
	h.vram = min(h.vram, h.all)
}

// hit reads the curve.
func (p *Plan) hit(x placed) hits {
	n := float64(max(1, p.shape.Fixed.Experts))
	if p.shape.Fixed.Experts == 0 {
		return hits{all: 1}
	}
	h := hits{all: p.curve.HitRate(float64(x.vram+x.ram.Slots) / n)}
	if x.vram+x.ram.Slots >= p.shape.Fixed.Experts {
		h.all = 1
	}
	if x.vram > 0 {
		h.vram = p.curve.HitRate(float64(x.vram) / n)
	}
	return h
}

// soft is the larger of two times that nearly exclude one another: where they are equal neither hides the other wholly.
// The exponent was fitted to the capped cells of bench/results/2026-12-02-lookahead.md.
func soft(a, b float64) float64 {
	const p = 6
	m := max(a, b)
	if m == 0 {
		return 0
	}
	return m * math.Pow(math.Pow(a/m, p)+math.Pow(b/m, p), 1.0/p)
}

// decode is the time of a token.
//
// A layer's arithmetic is its weights' bytes over what memory and kernels give. The experts that are not resident are read
// as soon as the router has chosen, at the disk's burst rate; m of a layer's k are missing with the binomial's chance. The
// reads hide under a share of the layer's arithmetic, their latency under nothing. Each byte read also slows the arithmetic beside it, and a layer that may
// have to ask for experts takes longer than one that never does. In the long run a
// token cannot be shorter than its bytes over the sustained rate.
func (p *Plan) decode(x placed, h hits) Terms {
	s, m := &p.shape, &p.Machine
	c := m.Engine
	var t Terms
	onCPU, onGPU := 1.0, 0.0 // shares of the experts' bytes
	if x.dense {
		onGPU = h.vram
		onCPU = 1 - h.vram
	}
	stream, gpuBytes := 0.0, 0.0
	// What of the weights the processor's cache keeps from token to token.
	cached := min(1, residentShare*float64(m.Cache)/(float64(s.DenseBytes)+s.MeanExpert()*float64(x.ram.Slots)))
	for _, w := range s.Traffic {
		cpu := onCPU * float64(w.Experts)
		gpuBytes += onGPU * float64(w.Experts)
		if x.dense {
			gpuBytes += float64(w.Dense)
		} else {
			cpu += float64(w.Dense)
		}
		stream += cpu / m.stream(w.Type, cached)
		t.Memory += (1 - cached) * cpu / m.Memory
		t.Compute += cpu / m.matVec(w.Type)
	}
	if x.dense {
		gpu := m.gpu()
		gpuBytes += float64(s.Attend)
		t.GPU = gpuBytes/gpu.Memory + float64(s.Layers)*gpu.Layer
	} else {
		stream += float64(s.Attend) / m.Memory
	}
	own := stream/c.Efficiency + float64(s.Layers)*c.Layer
	miss := 1 - h.all
	read := miss * float64(s.Touches()) * s.MeanExpert()
	t.Read = int64(read)
	t.Work = own + read*m.readCost()
	if miss > 0 {
		t.Work += float64(s.ExpertLayers) * c.Ask
	}
	t.Disk = read / m.Disk
	if s.ExpertLayers > 0 && miss > 0 {
		one := s.MeanExpert()
		layer := own / float64(s.Layers)
		if x.dense { // the card's part hides reads too
			layer += t.GPU / float64(s.Layers)
		}
		k := s.ExpertsPerToken
		for n := 1; n <= k; n++ {
			d := float64(n) * one / m.burst()
			w := max(d-c.Overlap*(layer+float64(n)*one*m.readCost()), c.Exposed*d)
			t.Wait += binomial(k, n, miss) * (w + c.Latency) * float64(s.ExpertLayers)
		}
	}
	t.Token = soft(t.Work+t.Wait+t.GPU, t.Disk)
	return t
}

// residentShare is the part of the last cache that a model's weights may take to stay there from token to token.
const residentShare = 0.75

// binomial is the chance of n of k.
func binomial(k, n int, p float64) float64 {
	if p <= 0 || p >= 1 {
		if p >= 1 && n == k {
			return 1
		}
		return 0
	}
	a, _ := math.Lgamma(float64(k + 1))
	b, _ := math.Lgamma(float64(n + 1))
	c, _ := math.Lgamma(float64(k - n + 1))
	return math.Exp(a - b - c + float64(n)*math.Log(p) + float64(k-n)*math.Log1p(-p))
}

// promptTokens is the prompt that prefill is predicted for.
const promptTokens = 512

// prefill is tokens per second of a prompt of a batch: every layer takes each of its experts once, with as many rows as
// chose it; those that are not resident are read meanwhile, and cost arithmetic by the expert and by the byte. Only the last token goes through the last layer's experts and
// the output matrix.
func (p *Plan) prefill(x placed) float64 {
	s, m := &p.shape, &p.Machine
	c := m.Engine
	rows := float64(min(max(x.ram.Batch, s.Batch), promptTokens, s.Context))
	each := rows
	distinct := 0.0
	if s.ExpertLayers > 0 {
		distinct = distinctExperts(s.ExpertsPerLayer, s.ExpertsPerToken, rows)
		each = max(1, rows*float64(s.ExpertsPerToken)/distinct)
	}
	work, deep := 0.0, max(0, s.ExpertLayers-1)
	for _, w := range s.Traffic {
		work += 2 * float64(w.DenseParams-w.HeadParams) * rows / m.gemm(w.Type, rows)
		if deep > 0 {
			work += 2 * float64(w.ExpertsParams) * rows / m.gemm(w.Type, each) * float64(deep) / float64(s.ExpertLayers)
		}
		work += 2 * float64(w.HeadParams) / m.gemm(w.Type, 1)
	}
	work = work/c.Prefill + float64(s.Layers)*c.Layer + rows*s.RowOps/1e9*c.Row
	resident := 0.0
	if s.ExpertLayers > 0 {
		resident = float64(x.ram.Slots+x.vram) / float64(s.ExpertLayers)
	}
	reads := max(0, distinct-resident) * float64(deep)
	read := reads * s.MeanExpert()
	return rows / soft(work+read/1e9*c.ReadPrompt+reads*c.PromptAsk, read/m.Disk)
}

// promptSkew is how unequal experts are in a prompt: popularity falls with the rank to this power, about what traces of
// trained routing show within one text.
const promptSkew = 0.7

// distinctExperts is how many of a layer's experts a batch of rows uses.
func distinctExperts(experts, topK int, rows float64) float64 {
	sum := 0.0
	for e := 1; e <= experts; e++ {
		sum += math.Pow(float64(e), -promptSkew)
	}
	n := 0.0
	for e := 1; e <= experts; e++ {
		use := min(1, float64(topK)*math.Pow(float64(e), -promptSkew)/sum)
		n += 1 - math.Pow(1-use, rows)
	}
	return n
}

// limit says in words what a token waits for most.
func (p *Plan) limit(t Terms) string {
	m := &p.Machine
	switch {
	case t.Disk >= t.Work+t.Wait+t.GPU || t.Wait > t.Work+t.GPU:
		return fmt.Sprintf("disk: %s a token at %s/s", gb(t.Read), gb(int64(m.Disk)))
	case t.GPU > t.Work+t.Wait:
		return fmt.Sprintf("graphics card: its weights at %s/s", gb(int64(m.gpu().Memory)))
	case float64(t.Read)*m.readCost() > t.Work/2:
		return fmt.Sprintf("disk: reading %s a token slows the arithmetic beside it", gb(t.Read))
	case t.Memory >= t.Compute:
		return fmt.Sprintf("memory: weights at %s/s", gb(int64(m.Memory)))
	}
	return "arithmetic: kernels of these types"
}

// TypicalGPU is a card of which only name and memory are known, with the speeds of a middling one.
func TypicalGPU(name string, vram int64) *GPU {
	return &GPU{Name: name, VRAM: vram, Memory: 150e9, Link: 12e9, Layer: 60e-6}
}

// gpu is the machine's card, or a typical one where none is known.
func (m *Machine) gpu() GPU {
	if m.GPU != nil {
		return *m.GPU
	}
	return *TypicalGPU("typical", 0)
}
