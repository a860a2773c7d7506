package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// failure is an error as clients get it: an HTTP status and the error object of the contract.
type failure struct {
	code    int    // HTTP status
	kind    string // error.type
	message string
	extra   map[string]any // further fields of the error object
	retry   int            // seconds for Retry-After; 0: no such header
}

func (f *failure) Error() string { return f.message }

// invalid is a request that can never work: 400.
func invalid(format string, a ...any) error {
	return &failure{code: http.StatusBadRequest, kind: "invalid_request_error", message: fmt.Sprintf(format, a...)}
}

// unsupported is a route or feature that is not switched on, or that the model cannot do: 501.
func unsupported(format string, a ...any) error {
	return &failure{code: http.StatusNotImplemented, kind: "not_supported_error", message: fmt.Sprintf(format, a...)}
}

// unavailable is for what may work later: 503, with Retry-After unless retry is 0.
func unavailable(retry int, format string, a ...any) error {
	return &failure{code: http.StatusServiceUnavailable, kind: "unavailable_error", message: fmt.Sprintf(format, a...), retry: retry}
}

// forbidden is a restricted action: 403.
func forbidden(format string, a ...any) error {
	return &failure{code: http.StatusForbidden, kind: "permission_error", message: fmt.Sprintf(format, a...)}
}

// tooLong is a prompt that the context of a slot cannot hold.
func tooLong(tokens, context int) error {
	return &failure{
		code: http.StatusBadRequest, kind: "exceed_context_size_error",
		message: fmt.Sprintf("the prompt has %d tokens, the context holds %d: shorten it or start the server with a larger context", tokens, context),
		extra:   map[string]any{"n_prompt_tokens": tokens, "n_ctx": context},
	}
}

var (
	errNoKey    = &failure{code: http.StatusUnauthorized, kind: "authentication_error", message: "Invalid API Key"}
	errNotFound = &failure{code: http.StatusNotFound, kind: "not_found_error", message: "File Not Found"}
)

// errGone is the end of a request whose client has left: nobody reads an answer.
var errGone = errors.New("the client is gone")

// errClosing ends requests that run while the server is told to stop.
var errClosing = &failure{code: http.StatusServiceUnavailable, kind: "unavailable_error", message: "the server is shutting down", retry: 5}

// asFailure makes any error one for clients; what nobody foresaw is a 500.
func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	message := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		message = "the request took too long"
	}
	return &failure{code: http.StatusInternalServerError, kind: "server_error", message: message}
}

// object is the JSON of the failure; anthropic adds the type that this dialect has at the top.
func (f *failure) object(anthropic bool) map[string]any {
	e := map[string]any{"code": f.code, "message": f.message, "type": f.kind}
	for k, v := range f.extra {
		e[k] = v
	}
	o := map[string]any{"error": e}
	if anthropic {
		o["type"] = "error"
	}
	return o
}

// write sends the failure as a whole reply.
func (f *failure) write(w http.ResponseWriter, anthropic bool) {
	h := w.Header()
	h.Set("Content-Type", contentJSON)
	if f.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(f.retry))
	}
	b, err := json.Marshal(f.object(anthropic))
	if err != nil {
		panic("server: an error object that is no JSON: " + err.Error())
	}
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(f.code)
	w.Write(b)
}
