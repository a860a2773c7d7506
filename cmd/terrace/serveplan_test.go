package main

import "testing"

// TestServePlan: the served plan is about the model as it runs, and --no-ui takes the page away.
func TestServePlan(t *testing.T) {
	url, stop := serving(t, map[string]string{"XDG_CACHE_HOME": t.TempDir()}, "-c", "512", "-np", "2", "--ram", "120M", "--cache-ram", "0", "--no-ui")
	defer stop()
	code, v := fetch(t, "GET", url+"/v1/plan?ram=17179869184", "", "")
	if code != 200 {
		t.Fatal(code, v)
	}
	p, now := v["plan"].(map[string]any), v["now"].(map[string]any)
	if p["ctx"] != 512.0 || p["parallel"] != 2.0 || now["budget"] != 120e6 && now["budget"] != float64(120<<20) || now["fits"] != true {
		t.Errorf("%v %v", p, now)
	}
	if here, ok := v["this_machine"].(map[string]any); ok && here["ram"].(float64) <= 0 {
		t.Errorf("%v", here)
	}
	if code, _ := fetch(t, "GET", url+"/", "", ""); code != 404 {
		t.Errorf("the page: %d", code)
	}
	if code, props := fetch(t, "GET", url+"/props", "", ""); code != 200 || props["ui"] != false {
		t.Errorf("%d, ui is %v", code, props["ui"])
	}
}
