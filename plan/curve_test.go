package plan

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"terrace/router"
)

func measured(t *testing.T, limit int) (*Curve, error) {
	t.Helper()
	r, err := router.OpenTrace("../testdata/tiny-moe/routing.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m, err := NewCurveMeter("routing.jsonl.gz", 8, 32, 4, []float64{0.5, 0.01, 0.1, 1, 0.2})
	if err != nil {
		t.Fatal(err)
	}
	for range limit {
		var l router.TraceLine
		if err := r.Next(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		m.Pass(l.Experts)
	}
	return m.Curve()
}

// TestMeasured: the demo model's curve rises, ends at a full cache that reads nothing once it is warm, and comes back
// from JSON as it was.
func TestMeasured(t *testing.T) {
	c, err := measured(t, 1200)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Points) != 4 || c.Tokens != 1200-warmPasses { // at 1 % not even one layer's experts fit
		t.Fatalf("%+v", c)
	}
	for i, want := range []struct{ resident, low, high float64 }{{25. / 256, 0.25, 0.4}, {51. / 256, 0.45, 0.6}, {0.5, 0.75, 0.9}, {1, 0.999, 1}} { // at 1 only what was never wanted before is read
		p := c.Points[i]
		if p.Resident != want.resident || p.HitRate < want.low || p.HitRate > want.high {
			t.Errorf("point %d: %+v, want %+v", i, p, want)
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseCurve("profile", b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, back); d != "" {
		t.Error(d)
	}
	if _, err := measured(t, warmPasses); err == nil || !strings.Contains(err.Error(), "256 tokens") {
		t.Errorf("a short trace: %v", err)
	}
}

func TestHitRate(t *testing.T) {
	c := &Curve{Version: CurveVersion, Points: []CurvePoint{{0.1, 0.3}, {0.5, 0.8}}}
	for _, x := range []struct{ resident, want float64 }{{-1, 0}, {0, 0}, {0.05, 0.15}, {0.1, 0.3}, {0.3, 0.55}, {0.5, 0.8}, {0.75, 0.9}, {1, 1}, {2, 1}} {
		if got := c.HitRate(x.resident); math.Abs(got-x.want) > 1e-12 {
			t.Errorf("at %g: %g, want %g", x.resident, got, x.want)
		}
	}
	full := &Curve{Points: []CurvePoint{{1, 0.99}}}
	if got := full.HitRate(1); got != 0.99 {
		t.Errorf("at the last point: %g", got)
	}
}

func TestRefused(t *testing.T) {
	for _, x := range []struct{ in, want string }{
		{`{`, "profile: reuse curve: unexpected end"},
		{`{"version":2}`, "version 2, this program reads version 1"},
		{`{"version":1}`, "without points"},
		{`{"version":1,"points":[{"resident":0.5,"hit_rate":0.5},{"resident":0.4,"hit_rate":0.6}]}`, "point 1 is (0.4, 0.6) after (0.5, 0.5)"},
		{`{"version":1,"points":[{"resident":0.5,"hit_rate":0.5},{"resident":0.6,"hit_rate":0.4}]}`, "point 1 is (0.6, 0.4)"},
		{`{"version":1,"points":[{"resident":1.5,"hit_rate":0.5}]}`, "point 0 is (1.5, 0.5)"},
	} {
		if _, err := ParseCurve("profile", []byte(x.in)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.in, err, x.want)
		}
	}
	for _, f := range []func() (*CurveMeter, error){
		func() (*CurveMeter, error) { return NewCurveMeter("x", 0, 8, 2, nil) },
		func() (*CurveMeter, error) { return NewCurveMeter("x", 1, 8, 9, nil) },
		func() (*CurveMeter, error) { return NewCurveMeter("x", 1, 8, 2, []float64{1.1}) },
		func() (*CurveMeter, error) { return NewCurveMeter("x", 1, 8, 2, []float64{math.NaN()}) },
	} {
		if m, err := f(); err == nil {
			t.Errorf("accepted: %+v", m)
		}
	}
}
