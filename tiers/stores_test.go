package tiers

import "testing"

func moreStores(t testing.TB) []maker { return nil }
