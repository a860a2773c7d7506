package chat

import "strings"

// framedForm is a way to write calls as a name and JSON arguments between markers.
type framedForm struct {
	open, close         string // around all calls
	callOpen, callClose string
	sep                 string // between name and arguments
	list                bool   // behind callOpen may stand JSON objects in place of a name
	fence               bool   // the arguments may stand in a Markdown block, behind the name
	id                  string // behind the name may stand this and an id
	split               func(text string) (name, id string)
}

var deepseekForm = framedForm{
	open: "<｜tool▁calls▁begin｜>", close: "<｜tool▁calls▁end｜>",
	callOpen: "<｜tool▁call▁begin｜>", callClose: "<｜tool▁call▁end｜>",
	sep: "<｜tool▁sep｜>", fence: true,
}

var kimiForm = framedForm{
	open: "<|tool_calls_section_begin|>", close: "<|tool_calls_section_end|>",
	callOpen: "<|tool_call_begin|>", callClose: "<|tool_call_end|>",
	sep: "<|tool_call_argument_begin|>",
	// functions.NAME:INDEX is both the name and the id by which the conversation refers to the call.
	split: func(text string) (string, string) {
		name := strings.TrimPrefix(text, "functions.")
		if i := strings.LastIndexByte(name, ':'); i >= 0 && digits(name[i+1:]) {
			return name[:i], text
		}
		return name, ""
	},
}

var mistralForm = framedForm{callOpen: "[TOOL_CALLS]", sep: "[ARGS]", list: true, id: "[CALL_ID]"}

type framedReader struct {
	form  *framedForm
	state framedState
	list  *objectReader
	fence bool
	scan  jsonScan
}

type framedState uint8

const (
	framedCall   framedState = iota // a call or the end of all
	framedName                      // behind callOpen
	framedFenced                    // behind "function" and sep: the name and the fence
	framedArgs
	framedEnd // behind the arguments
)

const maxName = 256

func (f *framedReader) step(in string, end bool, to *sink) (int, verdict) {
	if f.list != nil {
		return f.list.step(in, end, to)
	}
	switch f.state {
	case framedName:
		return f.readName(in, end, to)
	case framedFenced:
		return f.readFenced(in, end, to)
	case framedArgs:
		return f.arguments(in, end, to)
	}
	ws := leading(in)
	at := in[ws:]
	if f.state == framedEnd {
		closer := f.form.callClose
		if f.fence {
			if v := match(at, "```"); v != stepBad && !end || v == stepWent {
				if v == stepWent {
					f.fence = false
					ws += 3
				}
				return ws, v
			}
		}
		f.state, f.fence = framedCall, false
		if closer != "" {
			switch v := match(at, closer); {
			case v == stepWent:
				return ws + len(closer), stepWent
			case v == stepMore && !end:
				f.state = framedEnd
				return 0, stepMore
			}
		}
		return 0, stepWent // the closer is missing
	}
	more := false
	for _, m := range []string{f.form.callOpen, f.form.close} {
		if m == "" {
			continue
		}
		switch match(at, m) {
		case stepWent:
			if m == f.form.close {
				return ws + len(m), stepDone
			}
			f.state = framedName
			return ws + len(m), stepWent
		case stepMore:
			more = true
		}
	}
	if more && !end {
		return 0, stepMore
	}
	return 0, stepDone
}

func (f *framedReader) readName(in string, end bool, to *sink) (int, verdict) {
	if f.form.list {
		ws := leading(in)
		if ws == len(in) {
			return 0, stepMore
		}
		if in[ws] == '[' || in[ws] == '{' {
			f.list = &objectReader{}
			return ws, stepWent
		}
	}
	i := strings.Index(in, f.form.sep)
	brace := -1
	if f.form.list { // the separator may be missing
		if brace = strings.IndexByte(in, '{'); brace >= 0 && (i < 0 || brace < i) {
			i = brace
		}
	}
	if i < 0 || i > maxName {
		return 0, tooLong(in, f.form.sep)
	}
	n := i + len(f.form.sep)
	if i == brace {
		n = i
	}
	text := strings.TrimSpace(in[:i])
	if f.form.fence && text == "function" {
		ws := leading(in[n:])
		if n+ws == len(in) {
			return 0, stepMore
		}
		if in[n+ws] != '{' {
			f.state = framedFenced
			return n, stepWent
		}
	}
	name, id := text, ""
	if f.form.id != "" {
		name, id, _ = strings.Cut(text, f.form.id)
		name, id = strings.TrimSpace(name), strings.TrimSpace(id)
	}
	if f.form.split != nil {
		name, id = f.form.split(text)
	}
	return n, f.begin(name, id, to)
}

func (f *framedReader) begin(name, id string, to *sink) verdict {
	if !to.start(name, id) {
		return stepBad
	}
	f.state, f.scan = framedArgs, jsonScan{}
	return stepWent
}

// readFenced reads NAME, a line break and the beginning of a Markdown block.
func (f *framedReader) readFenced(in string, end bool, to *sink) (int, verdict) {
	i := strings.IndexByte(in, '{')
	if i < 0 || i > maxName {
		return 0, tooLong(in, "{")
	}
	name, fence, ok := strings.Cut(strings.TrimSpace(in[:i]), "\n")
	fence = strings.TrimSpace(fence)
	if ok && fence != "```json" && fence != "```" {
		return 0, stepBad
	}
	f.fence = ok
	return i, f.begin(strings.TrimSpace(name), "", to)
}

func (f *framedReader) arguments(in string, end bool, to *sink) (int, verdict) {
	if f.scan.fresh() {
		ws := leading(in)
		switch {
		case ws == len(in):
			return 0, stepMore
		case in[ws] == '{':
		case f.form.callClose != "":
			v := match(in[ws:], f.form.callClose)
			if v == stepWent { // no arguments at all
				to.arguments("{}")
				to.finish()
				f.state = framedEnd
			}
			return 0, v
		default:
			return 0, stepBad
		}
		in = in[ws:]
		var b strings.Builder
		n, done, _ := f.scan.scan(in, &b)
		to.arguments(b.String())
		f.argumentsDone(done, to)
		return ws + n, stepWent
	}
	var b strings.Builder
	n, done, ok := f.scan.scan(in, &b)
	to.arguments(b.String())
	f.argumentsDone(done, to)
	switch {
	case done || n > 0:
		return n, stepWent
	case !ok || end:
		return 0, stepBad
	}
	return 0, stepMore
}

func (f *framedReader) argumentsDone(done bool, to *sink) {
	if done {
		to.finish()
		f.state = framedEnd
	}
}
