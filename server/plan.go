package server

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"terrace/engine"
	"terrace/plan"
)

// Planner makes plans for a model as it is being served. Its methods may be called from several goroutines.
type Planner interface {
	// Plan plans for machines or budgets of these sizes. here is the machine itself, all zero where that is not known.
	Plan(sizes []plan.Size) (p plan.Plan, here plan.Size, err error)
}

// planMost is the number of sizes that one request may name.
const planMost = 64

// showPlan answers GET /v1/plan: what machines of other sizes would do with the model, and this one. Nothing changes.
func showPlan(c *call) error {
	if c.m.Planner == nil {
		return unsupported("this server makes no plans")
	}
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return invalid("the query cannot be read: %s", err)
	}
	ram, err := planSizes("ram", q["ram"])
	if err != nil {
		return err
	}
	budgets, err := planSizes("budget", q["budget"])
	if err != nil {
		return err
	}
	if len(ram)+len(budgets) > planMost {
		return invalid("%d sizes are given, at most %d are taken", len(ram)+len(budgets), planMost)
	}
	var sizes []plan.Size
	for _, n := range ram {
		sizes = append(sizes, plan.Size{RAM: n})
	}
	for _, n := range budgets {
		sizes = append(sizes, plan.Size{Budget: n})
	}
	p, here, err := c.m.Planner.Plan(sizes)
	if errors.Is(err, engine.ErrUsage) {
		return unsupported("%s", err)
	}
	if err != nil {
		return err
	}
	rows := p.Rows
	p.Rows = nil
	v := map[string]any{
		"object": "terrace.plan", "schema": tiersSchema, "model": c.m.Alias, "plan": p, "rows": rows, "now": p.Row(plan.Size{Budget: c.m.Engine.Budget().RAM}), "this_machine": nil,
	}
	if here.RAM > 0 || here.Budget > 0 {
		v["this_machine"] = p.Row(here)
	}
	return c.json(v)
}

// planSizes reads a parameter that is a list of bytes, given once at most.
func planSizes(name string, lists []string) ([]int64, error) {
	if len(lists) > 1 {
		return nil, invalid("%s is given %d times, want one list", name, len(lists))
	}
	if len(lists) == 0 || lists[0] == "" {
		return nil, nil
	}
	var out []int64
	for w := range strings.SplitSeq(lists[0], ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(w), 10, 64)
		if err != nil || n < 1 || n > 1<<50 {
			return nil, invalid("%s: %.40q is no size to plan for, want bytes, 1 to %d", name, w, int64(1)<<50)
		}
		out = append(out, n)
	}
	return out, nil
}
