package engine

import (
	"reflect"

	"terrace/tiers"
	"terrace/vulkan"
)

// portion adds to c what of the difference of now and before belongs to parts lo up to hi of so many equal ones. Portions
// that cover all parts add up to the difference exactly.
func (c *counters) portion(now, before *counters, lo, hi, of int64) {
	share(&c.cache, &now.cache, &before.cache, lo, hi, of)
	share(&c.table, &now.table, &before.table, lo, hi, of)
	share(&c.gpu, &now.gpu, &before.gpu, lo, hi, of)
	c.pipe = c.pipe.Plus(now.pipe.Since(before.pipe).Portion(lo, hi, of))
}

// share does so for every count of a struct of statistics. What such a struct tells of now is of no use in c.
func share[T tiers.Stats | tiers.TableStats | vulkan.Stats](c, now, before *T, lo, hi, of int64) {
	to, a, b := reflect.ValueOf(c).Elem(), reflect.ValueOf(now).Elem(), reflect.ValueOf(before).Elem()
	for i := range to.NumField() {
		if f := to.Field(i); f.Kind() == reflect.Int64 {
			d := a.Field(i).Int() - b.Field(i).Int()
			f.SetInt(f.Int() + d*hi/of - d*lo/of)
		}
	}
}
