package server

import (
	"net/http"
	"strings"

	"terrace/web"
)

// pageRoutes are the web page's files, which need no key and are there while the model loads.
func (s *Server) pageRoutes() {
	if s.opt.NoPage {
		return
	}
	files := web.Files()
	for i := range files {
		f := &files[i]
		answer := func(c *call) error { return pageFile(c, f) }
		s.add("GET", "/"+f.Name, answer, openRoute, earlyRoute)
		if f.Name == web.Index {
			s.add("GET", "/", answer, openRoute, earlyRoute)
		}
	}
	if s.opt.Prefix != "" { // paths of the page are relative: without the slash they would miss the prefix
		s.add("GET", "", func(c *call) error {
			c.w.Header().Set("Location", s.opt.Prefix+"/")
			c.w.WriteHeader(http.StatusPermanentRedirect)
			return nil
		}, openRoute, earlyRoute)
	}
	s.add("GET", "/ui.json", pageFacts, openRoute, earlyRoute)
}

// pageFile answers a request for one of the page's files.
func pageFile(c *call, f *web.File) error {
	h := c.w.Header()
	h.Del("Access-Control-Allow-Origin") // no other page has to read this one
	h.Del("Access-Control-Allow-Credentials")
	h.Set("Content-Security-Policy", web.Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // asked for again each time, and not sent again while it is the same
	h.Set("ETag", f.Tag)
	h.Add("Vary", "Accept-Encoding")
	if strings.Contains(c.r.Header.Get("If-None-Match"), f.Tag) {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	body := f.Body
	if takesGzip(c.r.Header.Get("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		body = f.Gzip
	}
	return c.reply(f.Type, body)
}

// takesGzip reads an Accept-Encoding header.
func takesGzip(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name = strings.TrimSpace(name); name == "gzip" || name == "*" {
			q = strings.TrimRight(strings.ReplaceAll(q, " ", ""), "0")
			return q != "q=" && q != "q=0." && q != "q=."
		}
	}
	return false
}

// pageFacts answers GET /ui.json: what the page has to know before it has a key.
func pageFacts(c *call) error {
	c.w.Header().Set("Cache-Control", "no-store")
	return c.json(map[string]any{"key": len(c.s.keys) > 0, "ready": c.m != nil, "build": c.s.opt.Build})
}
