package server

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"

	"terrace/engine"
)

// Poolings are the ways in which the vectors of tokens become a text's, by llama-server's names for them.
var Poolings = map[string]engine.Pooling{"none": engine.PoolNone, "mean": engine.PoolMean, "cls": engine.PoolFirst, "last": engine.PoolLast}

// pooling is the way of the server's options, else of the model's file.
func (c *call) pooling() (engine.Pooling, error) {
	if p := c.s.opt.Pooling; p != nil {
		return *p, nil
	}
	p, err := c.m.Engine.Pooling()
	if errors.Is(err, engine.ErrUnsupported) {
		err = unsupported("%s", err)
	}
	return p, err
}

// embed makes the vectors of texts; with engine.PoolNone of their tokens. They count with the bodies of requests.
func (c *call) embed(texts [][]int32, how engine.Pooling) (vectors [][][]float32, tokens int, err error) {
	for i, t := range texts {
		if len(t) == 0 {
			return nil, 0, invalid("text %d of the input has no tokens", i)
		}
		if err := c.m.checkPrompt(t); err != nil {
			return nil, 0, err
		}
		tokens += len(t)
	}
	width, most := c.m.Engine.Model().Config().Embd, 0
	for _, t := range texts {
		most = max(most, min(len(t), c.m.Engine.Model().MaxRows())) // of a pass
	}
	n := len(texts)
	if how == engine.PoolNone {
		n = tokens
	}
	hold := int64(4*width) * int64(n+most)
	if err := c.s.gate.grow(hold); err != nil {
		return nil, 0, err
	}
	c.held += hold
	for _, t := range texts {
		v, err := c.m.Scheduler.Embed(c.ctx, t, how)
		if err != nil {
			return nil, 0, err
		}
		vectors = append(vectors, v)
	}
	return vectors, tokens, nil
}

// embeddingsOn refuses what was not switched on.
func (c *call) embeddingsOn() error {
	if !c.s.opt.Embed {
		return unsupported("This server does not support embeddings. Start it with --embeddings")
	}
	return nil
}

// openaiEmbeddings answers POST /v1/embeddings.
func openaiEmbeddings(c *call) error {
	if err := c.embeddingsOn(); err != nil {
		return err
	}
	f, err := c.fields()
	if err != nil {
		return err
	}
	format := f.str("encoding_format", "float")
	if format != "float" && format != "base64" {
		f.fail("encoding_format is %.40q, want float or base64", format)
	}
	if f.err != nil {
		return f.err
	}
	how, err := c.pooling()
	if err != nil {
		return err
	}
	if how == engine.PoolNone {
		return invalid("pooling is none, which gives a vector for each token: this route has one for each text. POST /embedding has both")
	}
	texts, err := c.lists(f, "input", "content")
	if err != nil {
		return err
	}
	vectors, tokens, err := c.embed(texts, how)
	if err != nil {
		return err
	}
	data := make([]any, len(vectors))
	for i := range vectors {
		v := vectors[i][0]
		normalize(v, 2)
		var shown any = v
		if format == "base64" {
			shown = base64Floats(v)
		}
		data[i] = map[string]any{"object": "embedding", "index": i, "embedding": shown}
	}
	return c.json(map[string]any{"object": "list", "model": c.m.Alias, "data": data, "usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens}})
}

// embeddings answers POST /embedding and /embeddings, the native form.
func embeddings(c *call) error {
	if err := c.embeddingsOn(); err != nil {
		return err
	}
	f, err := c.fields()
	if err != nil {
		return err
	}
	how, err := c.pooling()
	if err != nil {
		return err
	}
	def := 2
	if how == engine.PoolNone { // as llama-server: tokens' vectors are as the model has them
		def = -1
	}
	norm := f.integer("embd_normalize", def)
	if norm < -1 || norm > 2 {
		f.fail("embd_normalize is %d, want -1 to 2", norm)
	}
	if f.err != nil {
		return f.err
	}
	texts, err := c.lists(f, "content", "input")
	if err != nil {
		return err
	}
	vectors, _, err := c.embed(texts, how)
	if err != nil {
		return err
	}
	out := make([]any, len(vectors))
	for i := range vectors {
		for _, v := range vectors[i] {
			normalize(v, norm)
		}
		out[i] = map[string]any{"index": i, "embedding": vectors[i]}
	}
	return c.json(out)
}

// rerank answers POST /rerank. No model of this engine ranks yet.
func rerank(c *call) error {
	if !c.s.opt.Rerank {
		return unsupported("This server does not support reranking. Start it with --reranking")
	}
	return unsupported("the model has no output that ranks documents")
}

// int16Scale is the largest magnitude of a vector that is scaled for 16-bit integers, as in llama-server.
const int16Scale = 32760

// normalize scales v in place: its largest magnitude to int16Scale (0), the sum of magnitudes to 1 (1), its length to 1 (2), or
// not at all (-1). A vector of zeros stays.
func normalize(v []float32, how int) {
	sum := 0.0
	for _, x := range v {
		a := math.Abs(float64(x))
		switch how {
		case 0:
			sum = max(sum, a/int16Scale)
		case 1:
			sum += a
		case 2:
			sum += a * a
		}
	}
	if how == 2 {
		sum = math.Sqrt(sum)
	}
	if how < 0 || sum == 0 {
		return
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / sum)
	}
}

// base64Floats is a vector as OpenAI's clients ask for it: little-endian float32.
func base64Floats(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
