package main

import (
	"strings"
	"testing"
)

func TestCalibrateUsage(t *testing.T) {
	for _, x := range []struct {
		code int
		want string
		args []string
	}{
		{exitFailure, "no cache folder", nil},
		{exitUsage, "--tokens is -1", []string{"--predictor", "--tokens", "-1"}},
		{exitFailure, "no cache folder", []string{"--predictor"}},
	} {
		if code, _, errs := terrace("", append([]string{"calibrate", "-m", tinyMoE}, x.args...)...); code != x.code || !strings.Contains(errs, x.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, %q", x.args, code, errs)
		}
	}
	if code, _, errs := terrace("", "run", "-m", tinyMoE, "--predictor-kind", "best", "hello"); code != exitUsage || !strings.Contains(errs, `predictor is "best"`) {
		t.Errorf("exit %d, %q", code, errs)
	}
}
