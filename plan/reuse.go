package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// defaultCurves is data/curves.json: reuse curves for models that nothing is known of but their architecture.
var defaultCurves = func() []familyCurve {
	const name = "data/curves.json"
	b, err := data.ReadFile(name)
	var f struct {
		Curves []familyCurve `json:"curves"`
	}
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err == nil && (len(f.Curves) == 0 || len(f.Curves[0].Archs) != 0) {
		err = fmt.Errorf("the first curve is to stand for all architectures")
	}
	for i := range f.Curves {
		if err == nil {
			f.Curves[i].Version = CurveVersion
			err = f.Curves[i].check()
		}
	}
	if err != nil {
		panic("plan: " + name + ": " + err.Error())
	}
	return f.Curves
}()

// familyCurve is a curve and the architectures that it stands for; none: all that no other stands for.
type familyCurve struct {
	Archs []string `json:"architectures,omitempty"`
	Fit   string   `json:"fit"` // how it came about
	Curve
}

// DefaultCurve is the curve that ships for an architecture. Its Source begins with "default".
func DefaultCurve(arch string) *Curve {
	pick := &defaultCurves[0]
	for i := range defaultCurves {
		if slices.Contains(defaultCurves[i].Archs, arch) {
			pick = &defaultCurves[i]
		}
	}
	c := pick.Curve
	c.Points = slices.Clone(c.Points)
	return &c
}

// heatError is how far a curve from a heat profile may be off: on tiny-moe's trace it is within 2 points of the cache's
// own from 5 % to 90 %, on invented routing from 6 points above (nothing but popularity) to 15 below (a quarter of 512
// experts used again by the next token, a twentieth of them resident), at most sizes within 8.
const heatError = 0.08

// heatBend brings the concentration of a profile's recent uses to what the cache finds: it also knows which experts follow
// which, and what the last token used. Fitted on tiny-moe's trace.
const heatBend = 1.1

// CurveFromHeat derives a curve from how often each expert was used lately ([layer][expert], any unit): a cache that holds
// the most used ones finds their share of all uses. It needs some uses of every layer, else it is nil.
func CurveFromHeat(source string, topK int, uses [][]float64) *Curve {
	var all []float64
	sum, layers, experts := 0.0, 0, 0
	for _, l := range uses {
		if len(l) == 0 {
			continue
		}
		layers++
		experts = max(experts, len(l))
		had := sum
		for _, v := range l {
			sum += v
			all = append(all, v)
		}
		if sum-had < float64(8*topK) {
			return nil
		}
	}
	if layers == 0 {
		return nil
	}
	slices.Sort(all)
	slices.Reverse(all)
	c := &Curve{Version: CurveVersion, Source: source, Policy: "most used", Layers: layers, Experts: experts, TopK: topK, Uncertainty: heatError}
	at, held := 0, 0.0
	for _, share := range CurveSizes {
		n := int(share*float64(len(all)) + 1e-9)
		for ; at < n; at++ {
			held += all[at]
		}
		c.Points = append(c.Points, CurvePoint{Resident: share, HitRate: min(1, 1-math.Pow(max(0, 1-held/sum), heatBend))})
	}
	return c
}
