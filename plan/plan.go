// Package plan answers what a machine would do with a model: how fast its parts are, kept in the machine profile, and what
// follows from that for a memory budget.
//
// It loads no weights and runs no model; measuring is done elsewhere and handed in as numbers.
package plan
