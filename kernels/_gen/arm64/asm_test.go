package main

import (
	"bufio"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestNames disassembles each encoded word with binutils and compares it with the name written beside it.
func TestNames(t *testing.T) {
	objdump, err := exec.LookPath("aarch64-linux-gnu-objdump")
	if err != nil {
		t.Skip("needs aarch64-linux-gnu-objdump (Debian's binutils-aarch64-linux-gnu)")
	}
	line := regexp.MustCompile(`WORD \$0x([0-9a-f]{8}) // (.*)`)
	var names []string
	var code []byte
	files, err := filepath.Glob("../../*_arm64.s")
	if err != nil || len(files) == 0 {
		t.Fatalf("no assembly: %v", err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if m := line.FindStringSubmatch(s.Text()); m != nil {
				w, err := strconv.ParseUint(m[1], 16, 32)
				if err != nil {
					t.Fatal(err)
				}
				code = binary.LittleEndian.AppendUint32(code, uint32(w))
				names = append(names, m[2])
			}
		}
	}
	bin := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(bin, code, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(objdump, "-D", "-b", "binary", "-m", "aarch64", bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	decoded := regexp.MustCompile(`(?m)^ *[0-9a-f]+:\t[0-9a-f]{8} \t(.*)$`).FindAllStringSubmatch(string(out), -1)
	if len(decoded) != len(names) {
		t.Fatalf("%d words, %d decoded", len(names), len(decoded))
	}
	plain := strings.NewReplacer(" ", "", "\t", "")
	for i, d := range decoded {
		text, _, _ := strings.Cut(d[1], "//")
		if plain.Replace(text) != plain.Replace(names[i]) {
			t.Errorf("%q is written beside a word that decodes to %q", names[i], text)
		}
	}
	t.Logf("%d words", len(names))
}
