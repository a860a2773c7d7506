package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

const contentJSON = "application/json; charset=utf-8"

// call is one request on its way through a handler.
type call struct {
	s      *Server
	m      *Model // nil only where the route answers while the model loads
	w      http.ResponseWriter
	rc     *http.ResponseController
	r      *http.Request
	route  *route
	id     string // what stands for {id} in the route's path
	body   []byte
	held   int64 // bytes of the gate
	events *stream
	sent   bool            // a whole reply, or the beginning of one
	ctx    context.Context // ends when the client leaves or the server stops
	cancel context.CancelCauseFunc
}

// handler answers a call. What it returns becomes the reply, or the last event of a stream that has begun.
type handler func(c *call) error

// Bodies may come slowly, but not so slowly that connections are held for nothing.
const (
	bodyPatience = 30 * time.Second
	bodyRate     = 64 << 10 // bytes a second at least, beyond it
	bodyChunk    = 64 << 10
)

// readBody reads the whole body within the limits of size, of time and of what all bodies may take.
func (c *call) readBody() error {
	if c.r.ContentLength > c.s.opt.MaxBody {
		return bodyTooLarge(c.r.ContentLength, c.s.opt.MaxBody)
	}
	start := time.Now()
	var buf []byte
	for {
		if len(buf) == cap(buf) {
			grow := max(bodyChunk, cap(buf)) // as it comes: a length that was only announced holds nothing
			if err := c.s.gate.grow(int64(grow)); err != nil {
				return err
			}
			c.held += int64(grow)
			buf = append(make([]byte, 0, cap(buf)+grow), buf...)
		}
		c.rc.SetReadDeadline(start.Add(bodyPatience + time.Duration(len(buf)/bodyRate)*time.Second))
		n, err := c.r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > c.s.opt.MaxBody {
			return bodyTooLarge(int64(len(buf)), c.s.opt.MaxBody)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.w.Header().Set("Connection", "close")
			return invalid("the body broke off after %d bytes: %s", len(buf), err)
		}
	}
	c.rc.SetReadDeadline(time.Time{}) // from here on reading means to notice that the client leaves
	c.body = buf
	return nil
}

func bodyTooLarge(n, most int64) error {
	f := invalid("the body has %d bytes or more, at most %d are taken", n, most).(*failure)
	f.code = http.StatusRequestEntityTooLarge
	return f
}

// fields is the body as a JSON object.
func (c *call) fields() (*fields, error) {
	if err := c.shape(); err != nil {
		return nil, err
	}
	return parseObject(c.body)
}

// shape checks the body's JSON before it is read, and lets what its values take count as the body itself does.
func (c *call) shape() error {
	n, err := checkShape(c.body)
	if err != nil {
		return err
	}
	if err := c.s.gate.grow(n); err != nil {
		return err
	}
	c.held += n
	return nil
}

// json sends v as the whole reply.
func (c *call) json(v any) error {
	var b bytes.Buffer
	if err := encode(&b, v); err != nil {
		return err
	}
	return c.reply(contentJSON, b.Bytes())
}

// reply sends a whole body.
func (c *call) reply(kind string, b []byte) error {
	c.sent = true
	h := c.w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	c.rc.SetWriteDeadline(time.Now().Add(writeLimit + time.Duration(len(b)/bodyRate)*time.Second))
	if _, err := c.w.Write(b); err != nil {
		return errGone
	}
	return nil
}

// finish ends the call with what its handler returned.
func (c *call) finish(err error) {
	if c.events != nil {
		defer c.events.end()
	}
	if err == nil {
		return
	}
	if errors.Is(err, context.Canceled) {
		if cause := context.Cause(c.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		} else if c.r.Context().Err() != nil {
			err = errGone
		}
	}
	if errors.Is(err, errGone) {
		c.s.log.Debug("the client left", "path", c.r.URL.Path)
		// One that only ended its own side still reads, and would take silence for an empty answer.
		if !c.sent && (c.events == nil || !c.events.hush()) {
			c.rc.SetWriteDeadline(time.Now().Add(writeLimit))
			invalid("the client closed the connection before there was an answer").(*failure).write(c.w, c.route.anthropic)
		}
		return
	}
	f := asFailure(err)
	if f.code >= http.StatusInternalServerError && f.kind == "server_error" {
		c.s.log.Error("request failed", "path", c.r.URL.Path, "error", f.message)
	}
	if c.events != nil && c.events.hush() {
		name := ""
		if c.route.anthropic {
			name = "error"
		}
		c.events.send(name, f.object(c.route.anthropic))
		return
	}
	c.rc.SetWriteDeadline(time.Now().Add(writeLimit))
	f.write(c.w, c.route.anthropic)
}
