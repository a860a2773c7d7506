package chat

import "strings"

// objectReader reads calls written as JSON: one object or several, or an array of them, each with a name and arguments.
type objectReader struct {
	closer string // ends the calls, may be missing in the text
	state  objectState
	array  bool

	name, id string
	begun    bool // the sink has the call
	complete bool // the arguments are there
	early    strings.Builder
	scan     jsonScan
	key      string
}

type objectState uint8

const (
	objectBegin    objectState = iota // [ or {
	objectNext                        // a { of an array
	objectField                       // a key, or }
	objectValue                       // the value of key
	objectArgs                        // within the arguments
	objectComma                       // a comma or }
	objectAfter                       // behind an object
	objectAfterAll                    // behind the array
)

func (o *objectReader) step(in string, end bool, to *sink) (int, verdict) {
	if o.state == objectArgs {
		return o.arguments(in, end, to)
	}
	ws := leading(in)
	at := in[ws:]
	if at == "" {
		switch {
		case !end:
			return 0, stepMore
		case o.state == objectAfter || o.state == objectAfterAll:
			return 0, stepDone
		case o.complete && o.state == objectComma && o.name != "":
			return o.endObject(0, to)
		}
		return 0, stepBad
	}
	switch o.state {
	case objectBegin, objectNext:
		switch {
		case at[0] == '{':
			o.state = objectField
		case at[0] == '[' && o.state == objectBegin:
			o.state, o.array = objectNext, true
		default:
			return 0, stepBad
		}
		return ws + 1, stepWent
	case objectField:
		if at[0] == '}' {
			return o.endObject(ws+1, to)
		}
		n, key, v := jsonString(at)
		if v != stepWent {
			return 0, v
		}
		colon := leading(at[n:])
		if n+colon == len(at) {
			return 0, stepMore
		}
		if at[n+colon] != ':' {
			return 0, stepBad
		}
		o.key, o.state = key, objectValue
		return ws + n + colon + 1, stepWent
	case objectValue:
		n, v := o.value(at, to)
		if v == stepWent {
			n += ws
		}
		return n, v
	case objectComma:
		switch at[0] {
		case ',':
			o.state = objectField
			return ws + 1, stepWent
		case '}':
			return o.endObject(ws+1, to)
		}
		return 0, stepBad
	}
	return o.after(in, ws, end)
}

// value reads what a key stands for, or the beginning of the arguments.
func (o *objectReader) value(at string, to *sink) (int, verdict) {
	switch o.key {
	case "name", "function", "tool_name":
		n, name, v := jsonString(at)
		if v == stepWent {
			if o.begun || o.name != "" {
				return 0, stepBad
			}
			o.name, o.state = name, objectComma
			if o.complete { // the arguments came first
				if !to.start(name, o.id) {
					return 0, stepBad
				}
				o.begun = true
				to.arguments(o.early.String())
			}
		}
		return n, v
	case "id", "call_id", "tool_call_id", "type":
		n, s, v := jsonString(at)
		if v == stepWent {
			if o.key != "type" {
				o.id = s
			} else if s != "function" {
				return 0, stepBad
			}
			o.state = objectComma
		}
		return n, v
	case "arguments", "parameters", "args", "input":
	default:
		return 0, stepBad
	}
	if o.complete {
		return 0, stepBad
	}
	begin := func() bool {
		if o.name == "" {
			return true
		}
		o.begun = to.start(o.name, o.id)
		return o.begun
	}
	whole := func(args string) bool {
		if !begin() {
			return false
		}
		o.put(args, to)
		o.complete, o.state = true, objectComma
		return true
	}
	switch at[0] {
	case '{':
		if !begin() {
			return 0, stepBad
		}
		o.state, o.scan = objectArgs, jsonScan{}
		return 0, stepWent
	case '"': // JSON within a string
		n, s, v := jsonString(at)
		if v != stepWent {
			return n, v
		}
		args, kind, ok := asJSON(s)
		if strings.TrimSpace(s) == "" {
			args, kind, ok = "{}", '{', true
		}
		if !ok || kind != '{' || !whole(args) {
			return 0, stepBad
		}
		return n, stepWent
	}
	if v := match(at, "null"); v != stepWent {
		return 0, v
	}
	if !whole("{}") {
		return 0, stepBad
	}
	return len("null"), stepWent
}

func (o *objectReader) put(args string, to *sink) {
	if o.begun {
		to.arguments(args)
	} else {
		o.early.WriteString(args)
	}
}

func (o *objectReader) arguments(in string, end bool, to *sink) (int, verdict) {
	var b strings.Builder
	n, done, ok := o.scan.scan(in, &b)
	o.put(b.String(), to)
	switch {
	case done:
		o.complete, o.state = true, objectComma
		return n, stepWent
	case n > 0:
		return n, stepWent
	case !ok || end:
		return 0, stepBad
	}
	return 0, stepMore
}

// endObject is at the closing bracket of a call.
func (o *objectReader) endObject(n int, to *sink) (int, verdict) {
	if !o.begun {
		if o.name == "" || !to.start(o.name, o.id) {
			return 0, stepBad
		}
	}
	if !o.complete {
		to.arguments("{}")
	}
	to.finish()
	*o = objectReader{closer: o.closer, state: objectAfter, array: o.array}
	return n, stepWent
}

// after looks for more calls or the end.
func (o *objectReader) after(in string, ws int, end bool) (int, verdict) {
	at := in[ws:]
	if o.array && o.state == objectAfter {
		switch at[0] {
		case ',':
			o.state = objectNext
			return ws + 1, stepWent
		case ']':
			o.state = objectAfterAll
			return ws + 1, stepWent
		}
		return 0, stepBad
	}
	if !o.array && at[0] == '{' {
		o.state = objectNext
		return ws, stepWent
	}
	if o.closer != "" {
		switch v := match(at, o.closer); {
		case v == stepWent:
			return ws + len(o.closer), stepDone
		case v == stepMore && !end:
			return 0, stepMore
		}
	}
	return 0, stepDone // the closer is missing
}
