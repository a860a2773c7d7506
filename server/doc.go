// Package server answers HTTP: llama-server's routes, OpenAI's and Anthropic's, over an engine whose slots decode together.
// It knows no tensors and no files of a model, and it neither parses a command line nor prints.
//
// A request is read whole and bounded, turned into tokens and a chooser of tokens, and handed to engine.Scheduler; what comes
// back passes a queue of bounded length to the goroutine that writes to the client, so that the scheduler never waits for a
// socket. One request type stands behind the chat dialects (chatRequest).
package server
