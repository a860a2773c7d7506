// Command _gen compiles the shaders beside it to SPIR-V: each source in the variants that its first lines name. Every sum and
// product of floats is decorated NoContraction, so that no driver fuses them whatever the source forgot, and debug
// information is left out, so that the files do not depend on paths. Run by `make shaders`.
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// want is the compiler that the committed files are made with: Debian 12's. Another may give other, equally right, files.
const want = "Glslang Version: 11:12.0.0"

var defines = map[string][]string{"base": nil, "f64": {"-DFP64"}, "emu": {"-DFP64", "-DEMU"}, "dot": {"-DDOT"}}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	out, err := exec.Command("glslangValidator", "--version").Output()
	if err != nil {
		return fmt.Errorf("glslangValidator, which Debian 12 has in glslang-tools: %w", err)
	}
	if got, _, _ := strings.Cut(string(out), "\n"); got != want {
		return fmt.Errorf("the compiler says %q, the shaders are made with %q", got, want)
	}
	sources, err := filepath.Glob("*.comp")
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "shaders")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	made := map[string]bool{}
	for _, src := range sources {
		text, err := os.ReadFile(src)
		if err != nil {
			return err
		}
		_, list, ok := strings.Cut(string(text), "\n// variants: ")
		if !ok {
			return fmt.Errorf("%s names no variants", src)
		}
		list, _, _ = strings.Cut(list, "\n")
		for _, v := range strings.Fields(list) {
			d, ok := defines[v]
			if !ok {
				return fmt.Errorf("%s: no variant %q", src, v)
			}
			name := strings.TrimSuffix(src, ".comp") + "." + v + ".spv"
			file := filepath.Join(tmp, name)
			args := append([]string{"-V", "--quiet", "--target-env", "vulkan1.2", "-o", file}, d...)
			if out, err := exec.Command("glslangValidator", append(args, src)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s (%s): %w\n%s", src, v, err, out)
			}
			code, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if code, err = exactly(code); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := os.WriteFile(name, code, 0o644); err != nil {
				return err
			}
			if val, err := exec.LookPath("spirv-val"); err == nil {
				if out, err := exec.Command(val, "--target-env", "vulkan1.2", name).CombinedOutput(); err != nil {
					return fmt.Errorf("%s: %w\n%s", name, err, out)
				}
			}
			made[name] = true
		}
	}
	old, err := filepath.Glob("*.spv")
	if err != nil {
		return err
	}
	for _, f := range old {
		if !made[f] {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Instructions of SPIR-V.
const (
	opSource, opSourceExtension, opName, opMemberName, opString, opLine, opNoLine = 3, 4, 5, 6, 7, 8, 317
	opDecorate, opMemberDecorate                                                  = 71, 72
	opFNegate, opFAdd, opFSub, opFMul, opFDiv                                     = 127, 129, 131, 133, 136
	opTypeVoid, opTypeBool                                                        = 19, 20
	noContraction                                                                 = 42
)

// exactly drops debug information and decorates float arithmetic.
func exactly(code []byte) ([]byte, error) {
	w := make([]uint32, len(code)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	if len(w) < 5 || w[0] != 0x07230203 {
		return nil, fmt.Errorf("no SPIR-V")
	}
	var ids []uint32
	out := append([]uint32(nil), w[:5]...)
	at := -1 // where decorations go: before the first type
	for i := 5; i < len(w); {
		n, op := int(w[i]>>16), w[i]&0xffff
		if n == 0 || i+n > len(w) {
			return nil, fmt.Errorf("a broken instruction")
		}
		switch op {
		case opSource, opSourceExtension, opName, opMemberName, opString, opLine, opNoLine:
			i += n
			continue
		case opFNegate, opFAdd, opFSub, opFMul, opFDiv:
			ids = append(ids, w[i+2])
		}
		if at < 0 && op >= opTypeVoid && op < opDecorate {
			if op >= opTypeVoid && op <= 39 {
				at = len(out)
			}
		}
		out = append(out, w[i:i+n]...)
		i += n
	}
	if at < 0 {
		return nil, fmt.Errorf("no types")
	}
	var deco []uint32
	for _, id := range ids {
		deco = append(deco, 3<<16|opDecorate, id, noContraction)
	}
	out = append(out[:at:at], append(deco, out[at:]...)...)
	b := make([]byte, 4*len(out))
	for i, v := range out {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b, nil
}
